#include "core/residency.h"

#include "core/error.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <tuple>
#include <utility>

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
    failed_ = kept_ = missed_ = loading_;
}

void Residency::submit(Plan plan) {
    SPAC_CHECK(plan.n_layer == table_.n_layer(), plan.n_layer, table_.n_layer());
    plan_    = std::make_shared<const Plan>(std::move(plan));
    retry_   = true;
    settled_ = false;
}

std::shared_ptr<const Plan> Residency::look() {
    take_back();
    return plan_;
}

// Takes slots back, and forgets what held for an older plan only.
void Residency::take_back() {
    for (const auto & [pool, slot] : returns_->take()) {
        table_.release(pool, slot);
    }
    if (std::exchange(retry_, false)) {
        for (auto * rows : {&failed_, &missed_}) {
            for (auto & row : *rows) {
                std::fill(row.begin(), row.end(), 0);
            }
        }
    }
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
            const bool busy = marks[il][e] != 0;
            marks[il][e] =
                static_cast<char>((busy || failed_[il][e] || missed_[il][e] == evicted ? SlotTable::no_load : 0) |
                                  (busy || kept_[il][e] || missed_[il][e] == loaded ? SlotTable::no_evict : 0));
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
            retired.push_back(publish(victim, nullptr, -1));
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
            retired.push_back(publish(load.id, lease_of(load.id.layer, load.slot), load.slot));
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

std::shared_ptr<const SlotLease> Residency::lease_of(int layer, int slot) {
    return std::make_shared<const SlotLease>([returns = returns_, storage = storage_, pool = table_.pool_of(layer),
                                              slot] { returns->give_back(pool, slot); });
}

std::shared_ptr<const Mask> Residency::publish(ExpertId id, std::shared_ptr<const SlotLease> lease, int slot) {
    auto next     = std::make_shared<Mask>(*masks_[id.layer]);
    next->version = next_version();
    next->n_resident += slot >= 0 ? 1 : -1;
    next->slot_of[id.expert] = slot;
    next->leases[id.expert]  = std::move(lease);
    return std::exchange(masks_[id.layer], std::move(next));
}

// ---- misses

Residency::Misses Residency::begin_misses(int layer, const std::vector<int32_t> & missing,
                                          const std::vector<char> & used, int cursor, bool most_recent) {
    Misses misses;
    evictions_.clear();
    take_back();
    const int  pool = table_.pool_of(layer);
    const auto free = static_cast<size_t>(table_.n_free(pool));
    if (missing.size() > free) {
        for (const ExpertId victim : victims(layer, used, cursor, missing.size() - free)) {
            table_.evict(victim);
            publish(victim, nullptr, -1); // the older version dies here, unless a launch holds it
            missed_[victim.layer][victim.expert] = most_recent ? evicted : untouched;
            evictions_.push_back({victim, pool, masks_[victim.layer]->version});
        }
        take_back();
    }
    std::shared_ptr<Mask> mask;
    for (const int32_t expert : missing) {
        const ExpertId id = {layer, expert};
        if (table_.slot_of(id) >= 0) {
            continue; // it is on its way already
        }
        if (table_.n_free(pool) == 0) {
            break;
        }
        if (mask == nullptr) {
            mask          = std::make_shared<Mask>(*masks_[layer]);
            mask->version = next_version();
        }
        const int slot          = table_.acquire(id);
        loading_[layer][expert] = 1;
        missed_[layer][expert]  = most_recent ? loaded : untouched;
        mask->slot_of[expert]   = slot;
        mask->leases[expert]    = lease_of(layer, slot);
        ++mask->n_resident;
        misses.loads.push_back({id, pool, slot});
    }
    n_loading_ += misses.loads.size();
    misses.mask = mask != nullptr ? std::move(mask) : masks_[layer];
    return misses;
}

void Residency::finish_misses(const Misses & misses, Retired & retired) {
    n_loading_ -= misses.loads.size();
    for (const Load & load : misses.loads) {
        loading_[load.id.layer][load.id.expert] = 0;
        retired.push_back(publish(load.id, misses.mask->leases[load.id.expert], load.slot));
    }
}

// Returns up to `n` experts of the layer's pool that a miss may evict, the least wanted first.
std::vector<ExpertId> Residency::victims(int layer, const std::vector<char> & used, int cursor, size_t n) const {
    // The rank is 0 for what the plan does not want, then 1 and 2 for what it wants, of this layer first, and 3 for
    // what was just loaded. Within a rank, experts that are foreseen or were used by their layer's last execution come
    // last, then the priority counts, then the layer that runs furthest in the future.
    using Order = std::tuple<int, bool, int32_t, int>;
    std::vector<std::pair<Order, ExpertId>> found;
    const int                               n_layer = table_.n_layer(), pool = table_.pool_of(layer);
    for (int il = 0; il < n_layer; ++il) {
        const Mask & mask = *masks_[il];
        for (int e = 0; mask.n_resident > 0 && table_.pool_of(il) == pool && e < table_.n_expert(il); ++e) {
            if (mask.slot_of[e] < 0 || (il == layer && used[e])) {
                continue;
            }
            const bool    planned  = plan_->n_layer > 0;
            const int32_t priority = planned ? plan_->of(il, e) : 0;
            const bool    recent   = missed_[il][e] == loaded;
            const int     rank     = recent ? 3 : !planned || !plan_->wants(il, e) ? 0 : il == layer ? 1 : 2;
            const int     distance = (il - cursor + n_layer) % n_layer;
            found.push_back({{rank, kept_[il][e] != 0, priority, -distance}, {il, e}});
        }
    }
    n = std::min(n, found.size());
    std::partial_sort(found.begin(), found.begin() + static_cast<std::ptrdiff_t>(n), found.end(),
                      [](const auto & a, const auto & b) { return a.first < b.first; });
    std::vector<ExpertId> ids;
    for (size_t i = 0; i < n; ++i) {
        ids.push_back(found[i].second);
    }
    return ids;
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
