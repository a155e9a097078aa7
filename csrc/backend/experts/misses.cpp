// Misses that are loaded within their layer: their settings, and how they change the slots.
#include "backend/experts/model_experts.h"

#include <algorithm>

namespace spac {
namespace {

// A pool's slots that plans leave to misses are at most this part of it.
constexpr int least_pool_share = 8;

} // namespace

void ModelExperts::set_miss(Miss how, bool most_recent) {
    const std::lock_guard lock(mutex_);
    miss_        = how;
    most_recent_ = most_recent;
}

const std::vector<ExpertWeight> & ModelExperts::weights_of(int il) const {
    const std::lock_guard lock(mutex_);
    return layers_[il].weights;
}

// Counts and records the evictions of the last change of a part's slots.
void ModelExperts::note_evictions_locked(ExpertsPart & part) {
    const auto & evictions = part.residency->evictions();
    if (evictions.empty()) {
        return;
    }
    counters.evictions += evictions.size();
    part.evictions += evictions.size();
    demand.note_evicted(evictions);
    Span span;
    span.activity = Activity::evict;
    span.start_ns = span.end_ns = Trace::now();
    for (const Residency::Eviction & eviction : evictions) {
        span.layer  = eviction.id.layer;
        span.expert = eviction.id.expert;
        span.pool   = eviction.pool;
        trace_->add(span);
    }
}

// Returns the number of a pool's slots that plans leave to misses: the experts of one token.
int ModelExperts::reserve_locked(int pool) const {
    int n_experts = 0, n_used = 0, n_slots = 0;
    for (const auto & layer : layers_) {
        if (layer.info.pool == pool) {
            n_experts += layer.info.n_expert;
            n_used                 = std::max(n_used, layer.info.n_used);
            const auto & residency = parts_[static_cast<size_t>(layer.info.device)]->residency;
            n_slots                = residency ? residency->table().n_slots(pool) : 0;
        }
    }
    return miss_ == Miss::cpu || most_recent_ || n_slots == n_experts ? 0
                                                                      : std::min(n_used, n_slots / least_pool_share);
}

ModelExperts::Misses ModelExperts::begin_misses(int il, const std::vector<int32_t> & missing,
                                                const std::vector<char> & used, Snapshot & now) {
    ExpertsPart &         part = part_of(il);
    const std::lock_guard driving(part.driving);
    const std::lock_guard lock(mutex_);
    if (!part.residency || now.generation != storage_generation_) {
        return {};
    }
    now.mask.reset();
    Misses misses = {part.residency->begin_misses(il, missing, used, cursor_, most_recent_), part.storage,
                     now.generation};
    note_evictions_locked(part);
    return misses;
}

void ModelExperts::finish_misses(int il, const Misses & misses) {
    Residency::Retired    retired; // freed outside the mutex
    ExpertsPart &         part = part_of(il);
    const std::lock_guard driving(part.driving);
    const std::lock_guard lock(mutex_);
    if (part.residency && misses.generation == storage_generation_) {
        demand.note_loaded(misses.of.loads);
        part.residency->finish_misses(misses.of, retired);
        settled_.notify_all();
    }
}

} // namespace spac
