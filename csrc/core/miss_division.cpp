#include "core/miss_division.h"

#include <algorithm>
#include <numeric>

namespace spac {

double divided_ns(const MissCosts & costs, int n_cpu, int64_t pairs, int n_link, int n_resident) {
    const double cpu =
        n_cpu > 0 ? costs.cpu_layer + costs.cpu_expert * n_cpu + costs.cpu_pair * static_cast<double>(pairs) : 0;
    const double link   = n_link > 0 ? costs.link_layer + costs.link_expert * n_link : 0;
    const double device = costs.device_expert * (n_resident + n_link);
    return std::max(cpu, link + device);
}

// For a given number of copies, the copies of the experts with the most rows leave the CPU the least work, and all
// other times are equal. So it is enough to try the numbers.
int experts_over_link(const MissCosts & costs, const std::vector<int> & rows, int n_resident, int most) {
    const int n      = static_cast<int>(rows.size());
    int64_t   pairs  = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    int       best   = 0;
    double    least  = divided_ns(costs, n, pairs, 0, n_resident);
    const int n_most = std::min(most, n);
    for (int n_link = 1; n_link <= n_most; ++n_link) {
        pairs -= rows[n_link - 1];
        const double ns = divided_ns(costs, n - n_link, pairs, n_link, n_resident);
        if (ns < least) {
            least = ns;
            best  = n_link;
        }
    }
    return best;
}

} // namespace spac
