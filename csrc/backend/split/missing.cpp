#include "backend/split/missing.h"

#include <algorithm>
#include <iterator>

namespace spac {

Missing missing_of(const SplitBlock & b, const Staging & s, const Mask * mask) {
    Missing          found;
    std::vector<int> rows(b.n_expert, 0);
    for (int t = 0; t < b.block.n_tokens(); ++t) {
        const int32_t * ids = s.ids_of(b.block, t);
        for (int u = 0; u < b.block.n_used(); ++u) {
            ++rows[ids[u]];
        }
    }
    found.used.resize(b.n_expert);
    for (int e = 0; e < b.n_expert; ++e) {
        found.used[e] = static_cast<char>(rows[e] > 0);
        if (rows[e] > 0 && (mask == nullptr || mask->slot_of[e] < 0)) {
            found.experts.push_back(e);
        }
    }
    const auto n_used = std::count(found.used.begin(), found.used.end(), 1);
    found.n_resident  = static_cast<int>(n_used) - static_cast<int>(found.experts.size());
    std::stable_sort(found.experts.begin(), found.experts.end(),
                     [&](int32_t a, int32_t c) { return rows[a] > rows[c]; });
    std::transform(found.experts.begin(), found.experts.end(), std::back_inserter(found.rows),
                   [&](int32_t e) { return rows[e]; });
    return found;
}

} // namespace spac
