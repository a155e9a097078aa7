#include "core/residency.h"

#include "core/error.h"

#include <algorithm>
#include <atomic>

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
        failed_.emplace_back(layer.n_expert, 0);
    }
}

void Residency::submit(Plan plan) {
    SPAC_CHECK(plan.n_layer == table_.n_layer(), plan.n_layer, table_.n_layer());
    plan_    = std::move(plan);
    settled_ = false;
    for (auto & row : failed_) {
        std::fill(row.begin(), row.end(), 0);
    }
}

std::vector<Residency::Load> Residency::begin(int cursor, size_t max_loads, size_t max_evictions, Retired & retired) {
    SPAC_CHECK(n_loading_ == 0, n_loading_);
    for (const auto & [pool, slot] : returns_->take()) {
        table_.release(pool, slot);
    }
    std::vector<Load> loads;
    evictions_.clear();
    if (plan_.n_layer == 0) {
        return loads;
    }
    const auto actions = table_.toward(plan_, cursor, failed_);
    settled_           = actions.empty();
    for (const SlotTable::Action & action : actions) {
        if (action.kind == SlotTable::Action::use_free && loads.size() < max_loads) {
            const int slot = table_.acquire(action.load);
            loads.push_back({action.load, table_.pool_of(action.load.layer), slot});
        } else if (action.kind == SlotTable::Action::use_evicted && evictions_.size() < max_evictions) {
            const ExpertId victim = action.evict;
            table_.evict(victim);
            retired.push_back(publish(victim, -1));
            evictions_.push_back({victim, table_.pool_of(victim.layer), masks_[victim.layer]->version});
        }
    }
    n_loading_ = loads.size();
    return loads;
}

void Residency::finish(const std::vector<Load> & loads, bool copied, Retired & retired) {
    SPAC_CHECK(loads.size() == n_loading_, loads.size(), n_loading_);
    n_loading_ = 0;
    for (const Load & load : loads) {
        if (copied) {
            retired.push_back(publish(load.id, load.slot));
        } else {
            table_.evict(load.id); // it was never published: nobody reads the slot
            table_.release(load.pool, load.slot);
            failed_[load.id.layer][load.id.expert] = 1;
        }
    }
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
            // an expert that is being loaded has a slot and is not published yet
            SPAC_CHECK(slot < 0 || slot == table_.slot_of({il, e}), il, e, slot);
        }
        SPAC_CHECK(n_resident == mask.n_resident, il, n_resident, mask.n_resident);
    }
}

} // namespace spac
