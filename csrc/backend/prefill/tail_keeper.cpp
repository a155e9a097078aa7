#include "backend/prefill/tail_keeper.h"

#include "core/copy_runs.h"

#include <utility>

namespace spac {

void TailKeeper::choose(const SplitBlock & b, const char * ids, size_t stride, int n_tokens,
                        const std::vector<int32_t> * from) {
    std::vector<int32_t> counts(static_cast<size_t>(b.n_expert), 0);
    for (int t = 0; t < n_tokens; ++t) {
        const auto * row = reinterpret_cast<const int32_t *>(ids + t * stride);
        for (int u = 0; u < b.block.n_used(); ++u) {
            ++counts[row[u]];
        }
    }
    for (size_t e = 0; from != nullptr && e < from->size(); ++e) {
        counts[e] = (*from)[e] == not_wanted ? 0 : counts[e];
    }
    experts_ = b.experts;
    tails_.push_back(b.experts->begin_tail(b.layer, counts, n_tokens));
    n_turns_ = b.turns.size();
}

void TailKeeper::copy(const WeightTurn & turn, WeightStream & weights) {
    ModelExperts::Tail & tail = tails_.back();
    for (const Residency::Load & load : tail.loads) {
        weights.keep(turn, load.id.expert, *tail.storage, load.pool, load.slot);
    }
    tail.copied = --n_turns_ == 0;
}

void TailKeeper::end() {
    if (const auto experts = std::exchange(experts_, nullptr)) {
        experts->end_tail(tails_);
    }
    tails_.clear();
}

} // namespace spac
