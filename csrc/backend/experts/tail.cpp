// What stays in slots of the experts that a prompt's last tokens use: how the slots change.
#include "backend/experts/model_experts.h"

namespace spac {

ModelExperts::Tail ModelExperts::begin_tail(int il, const std::vector<int32_t> & counts, int n_tokens) {
    Residency::Retired    retired; // freed outside the mutex
    ExpertsPart &         part = part_of(il);
    const std::lock_guard driving(part.driving);
    const std::lock_guard lock(mutex_);
    if (!part.residency) {
        return {il, {}, nullptr, 0, false};
    }
    Tail tail = {il, part.residency->begin_tail(il, counts, n_tokens, retired), part.storage, storage_generation_,
                 false};
    note_evictions_locked(part);
    return tail;
}

// The tails of a graph are of one device.
void ModelExperts::end_tail(const std::vector<Tail> & tails) {
    if (tails.empty()) {
        return;
    }
    Residency::Retired           retired; // freed outside the mutex
    std::shared_ptr<SlotReturns> returns;
    {
        ExpertsPart &         part = part_of(tails.front().layer);
        const std::lock_guard driving(part.driving);
        const std::lock_guard lock(mutex_);
        if (!part.residency) {
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
            part.residency->finish(tail.loads, tail.copied, retired);
        }
        part.residency->end_tail();
        settled_.notify_all();
        returns = part.residency->returns();
    }
    returns->wake();
}

} // namespace spac
