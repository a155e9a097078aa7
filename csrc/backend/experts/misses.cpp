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

void ModelExperts::set_miss_costs(const std::vector<MissCosts> & costs) {
    const std::lock_guard lock(mutex_);
    miss_costs_ = costs;
}

std::optional<MissCosts> ModelExperts::miss_costs(int il) const {
    const std::lock_guard lock(mutex_);
    const auto            pool = static_cast<size_t>(layers_[il].info.pool);
    if (pool >= miss_costs_.size()) {
        return std::nullopt;
    }
    MissCosts costs = miss_costs_[pool];
    if (const double byte_ns = part_of_locked(il).link_byte_ns; byte_ns > 0) {
        costs.link_expert = byte_ns * static_cast<double>(layers_[il].info.expert_bytes);
    }
    return costs;
}

// A copy that had ended before the host looked took `ns` at most. Then the time is believed to be a little less than it
// was, so that the link gets more work until its copies are seen to end. A layer that gives the link nothing has the
// same effect, more slowly. So one time that was wrong does not keep the link idle for good.
void ModelExperts::note_link(int il, size_t bytes, int64_t ns, bool waited) {
    constexpr double      share = 1.0 / 8, sinking = 0.99, idle_sinking = 0.999;
    const std::lock_guard lock(mutex_);
    double &              byte_ns = part_of_locked(il).link_byte_ns;
    if (bytes == 0) {
        byte_ns *= idle_sinking;
        return;
    }
    const double each = static_cast<double>(ns) / static_cast<double>(bytes);
    if (byte_ns <= 0) {
        byte_ns = each;
    } else if (waited) {
        byte_ns += share * (std::min(each, 4 * byte_ns) - byte_ns);
    } else {
        byte_ns = std::min(each, sinking * byte_ns);
    }
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
            n_used  = std::max(n_used, layer.info.n_used);
            n_slots = parts_[static_cast<size_t>(layer.info.device)]->residency->table().n_slots(pool);
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
    const Residency::MissRule rule = {most_recent_, most_recent_ || miss_ == Miss::load};
    Misses misses = {part.residency->begin_misses(il, missing, used, cursor_, rule), part.storage, now.generation};
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
