#include "core/demand_share.h"

#include "core/round.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

namespace spac {

void renew_shares(double * share, int32_t * demand, const bool * resident, size_t n, double n_tokens, double kept,
                  double * bins, int n_bins) {
    std::array<double, 33> shares; // of few activations
    const auto             share_of = [n_tokens](double x) { return std::min(x / n_tokens, 1.0); };
    for (size_t k = 0; k < shares.size(); ++k) {
        shares[k] = share_of(static_cast<double>(k));
    }
    // Whole numbers, by turns, with a bin for residents: an increment waits for the last one of the same place.
    std::vector<uint32_t> counts(2 * (static_cast<size_t>(n_bins) + 1));
    uint32_t * const      turns[] = {counts.data(), counts.data() + n_bins + 1};
    constexpr size_t      step    = 64;
    int32_t               at[step];
    double                now[step];
    for (size_t first = 0; first < n; first += step) {
        const size_t size = std::min(step, n - first);
        for (size_t i = 0; i < size; ++i) {
            const auto k = static_cast<uint32_t>(demand[first + i]);
            now[i]       = k < shares.size() ? shares[k] : share_of(demand[first + i]);
        }
        for (size_t i = 0; i < size; ++i) {
            share[first + i] = share[first + i] * kept + (1 - kept) * now[i];
            at[i]            = static_cast<int32_t>(rounded(std::sqrt(share[first + i]) * (n_bins - 1)));
        }
        for (size_t i = 0; i < size; ++i) {
            const int32_t bin = std::clamp(at[i], 0, n_bins - 1);
            ++turns[i % 2][bin + (n_bins - bin) * static_cast<int32_t>(resident[first + i])];
        }
    }
    for (int bin = 0; bin < n_bins; ++bin) {
        bins[bin] = static_cast<double>(turns[0][bin] + turns[1][bin]);
    }
    std::fill_n(demand, n, 0);
}

} // namespace spac
