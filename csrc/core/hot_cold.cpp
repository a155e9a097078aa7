#include "core/hot_cold.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spac {

HotCold hot_cold(int n_layer, int n_expert, const int32_t * demand, const int32_t * priority, const int32_t * threshold,
                 const bool * exists) {
    HotCold              sums;
    std::vector<int32_t> is_real(static_cast<size_t>(n_expert)); // as wide as the others: vectors of one kind
    for (int il = 0; il < n_layer; ++il) {
        int32_t n_pairs = 0, n_used = 0, n_wanted = 0, n_both = 0, n_exist = 0;
        std::copy(exists, exists + n_expert, is_real.begin());
        for (int e = 0; e < n_expert; ++e) {
            const int32_t is_used   = demand[e] > 0 ? 1 : 0;
            const int32_t is_wanted = (priority[e] >= threshold[il] ? 1 : 0) & is_real[static_cast<size_t>(e)];
            n_pairs += demand[e];
            n_used += is_used;
            n_wanted += is_wanted;
            n_both += is_wanted & is_used;
            n_exist += is_real[static_cast<size_t>(e)];
        }
        sums.n_pairs += n_pairs;
        sums.n_used += n_used;
        sums.n_wanted += n_wanted;
        sums.n_both += n_both;
        sums.n_exist += n_exist;
        demand += n_expert;
        priority += n_expert;
        exists += n_expert;
    }
    return sums;
}

} // namespace spac
