// What stays in slots of the experts that a prompt's last tokens use: how the slots change.
#include "backend/experts/model_experts.h"

namespace spac {

ModelExperts::Tail ModelExperts::begin_tail(int il, const std::vector<int32_t> & counts, int n_tokens) {
    Residency::Retired    retired; // freed outside the mutex
    const std::lock_guard driving(driving_);
    const std::lock_guard lock(mutex_);
    if (!residency_) {
        return {};
    }
    Tail tail = {residency_->begin_tail(il, counts, n_tokens, retired), storage_, storage_generation_};
    counters.evictions += residency_->evictions().size();
    note_evictions_locked(residency_->evictions());
    return tail;
}

void ModelExperts::end_tail(const std::vector<Tail> & tails) {
    Residency::Retired           retired; // freed outside the mutex
    std::shared_ptr<SlotReturns> returns;
    {
        const std::lock_guard driving(driving_);
        const std::lock_guard lock(mutex_);
        if (!residency_) {
            return;
        }
        for (const Tail & tail : tails) {
            if (tail.generation != storage_generation_) {
                continue; // the slots were replaced
            }
            if (tail.copied) {
                demand.note_loaded(tail.loads);
                counters.tail_experts += tail.loads.size();
            }
            residency_->finish(tail.loads, tail.copied, retired);
        }
        residency_->end_tail();
        settled_.notify_all();
        returns = residency_->returns();
    }
    returns->wake();
}

} // namespace spac
