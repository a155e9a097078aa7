#include "backend/split/look_ahead.h"

#include "backend/experts/model_experts.h"

#include <algorithm>

namespace spac {
namespace {

void add_distinct(std::vector<int32_t> & list, const int32_t * ids, int n) {
    for (int i = 0; i < n; ++i) {
        if (std::find(list.begin(), list.end(), ids[i]) == list.end()) {
            list.push_back(ids[i]);
        }
    }
}

void compare(SplitBlock & b, const Staging & s) {
    const int n_used = b.block.n_used();
    for (size_t t = 0; t * n_used < b.foreseen.size(); ++t) {
        const int32_t * chosen = s.ids_of(b.block, static_cast<int>(t));
        b.experts->lookahead.compare(b.foreseen.data() + t * n_used, chosen, n_used);
    }
    b.foreseen.clear();
}

// Returns the experts that the later block is predicted to use, from trusted places only. All tokens' first places come
// first.
std::vector<int32_t> foresee(Foresight & foresight, const Staging & s) {
    SplitBlock & to       = *foresight.block;
    const int    n_tokens = to.block.n_tokens(), n_used = to.block.n_used();
    to.foreseen.resize(static_cast<size_t>(n_used) * n_tokens);
    for (int t = 0; t < n_tokens; ++t) {
        foresight.chooser.choose(s.host_scores + static_cast<size_t>(t) * to.n_expert, to.n_expert, n_used,
                                 to.foreseen.data() + static_cast<size_t>(t) * n_used);
    }
    std::vector<int32_t> experts;
    const int            n_trusted = to.experts->lookahead.n_trusted(n_used);
    for (int place = 0; place < n_trusted; ++place) {
        for (int t = 0; t < n_tokens; ++t) {
            add_distinct(experts, &to.foreseen[static_cast<size_t>(t) * n_used + place], 1);
        }
    }
    return experts;
}

} // namespace

void look_ahead(SplitBlock & b, const Staging & s) {
    b.experts->lookahead.note_layer(b.layer, Trace::now());
    if (!b.foreseen.empty()) {
        compare(b, s);
    }
    std::vector<int32_t> used;
    for (int t = 0; t < b.block.n_tokens(); ++t) {
        add_distinct(used, s.ids_of(b.block, t), b.block.n_used());
    }
    b.experts->note_used(b.layer, std::move(used));
    if (b.foresight) {
        b.experts->foresee(b.foresight->block->layer, foresee(*b.foresight, s));
    }
}

} // namespace spac
