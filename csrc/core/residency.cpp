#include "core/residency.h"

#include "core/error.h"

#include <algorithm>
#include <atomic>
#include <iterator>

namespace spac {
namespace {

// Versions are unique in the process: a stream that holds an older residency's mask on its device must never take a
// newer one for it.
uint64_t next_version() {
    static std::atomic<uint64_t> last{0};
    return ++last;
}

} // namespace

Residency::Residency(const std::vector<SlotTable::Layer> & layers, const std::vector<int> & pool_slots,
                     std::shared_ptr<const void> storage)
    : table_(layers, pool_slots), storage_(std::move(storage)) {
    for (const SlotTable::Layer & layer : layers) {
        auto mask     = std::make_shared<Mask>();
        mask->version = next_version();
        mask->slot_of.assign(layer.n_expert, -1);
        mask->leases.resize(layer.n_expert);
        masks_.push_back(std::move(mask));
        loading_.emplace_back(layer.n_expert, 0);
    }
    failed_ = kept_ = loading_;
}

void Residency::submit(Plan plan) {
    SPAC_CHECK(plan.n_layer == table_.n_layer(), plan.n_layer, table_.n_layer());
    plan_    = std::make_shared<const Plan>(std::move(plan));
    retry_   = true;
    settled_ = false;
}

std::shared_ptr<const Plan> Residency::look() {
    for (const auto & [pool, slot] : returns_->take()) {
        table_.release(pool, slot);
    }
    if (std::exchange(retry_, false)) {
        for (auto & row : failed_) {
            std::fill(row.begin(), row.end(), 0);
        }
    }
    return plan_;
}

std::vector<ExpertId> Residency::foreseen() const {
    std::vector<ExpertId> absent;
    std::copy_if(urgent_.begin(), urgent_.end(), std::back_inserter(absent),
                 [&](ExpertId id) { return table_.slot_of(id) < 0; });
    return absent;
}

std::vector<SlotTable::Action> Residency::choose(const Plan & plan, int cursor, const SlotTable::Limits & limits,
                                                 const std::vector<ExpertId> & urgent) const {
    if (plan.n_layer == 0) {
        return {};
    }
    SlotTable::Marks marks = loading_; // no load and no eviction: a slot that is being written has no lease yet
    for (size_t il = 0; il < marks.size(); ++il) {
        for (size_t e = 0; e < marks[il].size(); ++e) {
            marks[il][e] = static_cast<char>((marks[il][e] || failed_[il][e] ? SlotTable::no_load : 0) |
                                             (marks[il][e] || kept_[il][e] ? SlotTable::no_evict : 0));
        }
    }
    return table_.toward(plan, cursor, marks, urgent, limits);
}

std::vector<Residency::Load> Residency::begin(const std::vector<SlotTable::Action> & actions, Retired & retired) {
    std::vector<Load> loads;
    evictions_.clear();
    settled_ = actions.empty() && !retry_;
    for (const SlotTable::Action & action : actions) {
        if (action.kind == SlotTable::Action::use_free) {
            const ExpertId id             = action.load;
            const int      slot           = table_.acquire(id);
            loading_[id.layer][id.expert] = 1;
            loads.push_back({id, table_.pool_of(id.layer), slot});
        } else if (action.kind == SlotTable::Action::use_evicted) {
            const ExpertId victim = action.evict;
            table_.evict(victim);
            retired.push_back(publish(victim, -1));
            evictions_.push_back({victim, table_.pool_of(victim.layer), masks_[victim.layer]->version});
        }
    }
    n_loading_ += loads.size();
    return loads;
}

void Residency::finish(const std::vector<Load> & loads, bool copied, Retired & retired) {
    SPAC_CHECK(loads.size() <= n_loading_, loads.size(), n_loading_);
    n_loading_ -= loads.size();
    for (const Load & load : loads) {
        loading_[load.id.layer][load.id.expert] = 0;
        if (copied) {
            retired.push_back(publish(load.id, load.slot));
        } else {
            table_.evict(load.id); // it was never published, so nobody reads the slot
            table_.release(load.pool, load.slot);
            failed_[load.id.layer][load.id.expert] = 1;
        }
    }
}

void Residency::foresee(int layer, const std::vector<int32_t> & experts) {
    keep(layer, experts);
    for (const int32_t expert : experts) {
        urgent_.push_back({layer, expert});
    }
}

void Residency::note_used(int layer, const std::vector<int32_t> & experts) { keep(layer, experts); }

void Residency::forget() {
    urgent_.clear();
    for (auto & row : kept_) {
        std::fill(row.begin(), row.end(), 0);
    }
}

// Replaces what was known of a layer: newer knowledge is worth more.
void Residency::keep(int layer, const std::vector<int32_t> & experts) {
    std::fill(kept_[layer].begin(), kept_[layer].end(), 0);
    for (const int32_t expert : experts) {
        kept_[layer][expert] = 1;
    }
    urgent_.erase(std::remove_if(urgent_.begin(), urgent_.end(), [&](ExpertId id) { return id.layer == layer; }),
                  urgent_.end());
}

std::shared_ptr<const Mask> Residency::publish(ExpertId id, int slot) {
    auto next     = std::make_shared<Mask>(*masks_[id.layer]);
    next->version = next_version();
    next->n_resident += slot >= 0 ? 1 : -1;
    next->slot_of[id.expert] = slot;
    next->leases[id.expert].reset();
    if (slot >= 0) {
        next->leases[id.expert] =
            std::make_shared<const SlotLease>([returns = returns_, storage = storage_, pool = table_.pool_of(id.layer),
                                               slot] { returns->give_back(pool, slot); });
    }
    return std::exchange(masks_[id.layer], std::move(next));
}

void Residency::check_integrity() const {
    table_.check_integrity();
    for (int il = 0; il < table_.n_layer(); ++il) {
        const Mask & mask       = *masks_[il];
        int          n_resident = 0;
        for (int e = 0; e < table_.n_expert(il); ++e) {
            const int slot = mask.slot_of[e];
            n_resident += slot >= 0;
            SPAC_CHECK((slot >= 0) == (mask.leases[e] != nullptr), il, e, slot);
            // An expert that is being loaded has a slot and is not published yet.
            SPAC_CHECK(slot < 0 || slot == table_.slot_of({il, e}), il, e, slot);
        }
        SPAC_CHECK(n_resident == mask.n_resident, il, n_resident, mask.n_resident);
    }
}

} // namespace spac
