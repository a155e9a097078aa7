#include "core/select.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

namespace spac {
namespace {

constexpr int      n_bits = 11;
constexpr uint32_t n_bins = 1U << n_bits;

using Counts = std::array<uint32_t, n_bins>;

} // namespace

// Counted in bins of equal width; only those in the bin where it lies are compared with each other.
int32_t nth_largest(const std::vector<int32_t> & values, size_t n) {
    SPAC_CHECK(n >= 1 && n <= values.size(), n, values.size());
    int32_t least = 0, most = 0; // or less than the least, more than the most
    for (const int32_t value : values) {
        most |= value;
    }
    if (most < 0) {
        least = *std::min_element(values.begin(), values.end());
        most  = *std::max_element(values.begin(), values.end());
    }
    const auto above = [least](int32_t value) { return static_cast<uint32_t>(value) - static_cast<uint32_t>(least); };
    int        shift = 0;
    while (above(most) >> shift >= n_bins) {
        ++shift;
    }
    std::array<Counts, 2> counts = {}; // of every other value, so that one increment does not wait for the last
    for (size_t i = 0; i < values.size(); ++i) {
        ++counts[i % 2][above(values[i]) >> shift];
    }
    uint32_t   bin    = above(most) >> shift;
    const auto in_bin = [&] { return counts[0][bin] + counts[1][bin]; };
    while (in_bin() < n) {
        n -= in_bin();
        --bin;
    }
    std::vector<int32_t> inside(in_bin() + 1);
    size_t               n_inside = 0;
    for (const int32_t value : values) {
        inside[n_inside] = value; // overwritten by the next one if it lies elsewhere
        n_inside += static_cast<size_t>(above(value) >> shift == bin);
    }
    inside.pop_back();
    const auto nth = inside.begin() + static_cast<std::ptrdiff_t>(n - 1);
    std::nth_element(inside.begin(), nth, inside.end(), std::greater<>());
    return *nth;
}

std::vector<char> are_largest(const std::vector<int32_t> & values, size_t n_largest) {
    if (n_largest == 0 || n_largest >= values.size()) {
        return std::vector<char>(values.size(), static_cast<char>(n_largest > 0));
    }
    const int32_t     least = nth_largest(values, n_largest);
    std::vector<char> are(values.size());
    std::transform(values.begin(), values.end(), are.begin(), [&](int32_t value) { return value > least; });
    auto n_equal = n_largest - static_cast<size_t>(std::accumulate(are.begin(), are.end(), 0));
    for (size_t i = 0; n_equal > 0; ++i) {
        if (values[i] == least) {
            are[i] = 1;
            --n_equal;
        }
    }
    return are;
}

std::vector<int32_t> sorted_places(const std::vector<int32_t> & values) {
    std::vector<int32_t> places(values.size()), next(values.size());
    std::iota(places.begin(), places.end(), 0);
    for (int shift = 0; shift < 2 * n_bits; shift += n_bits) {
        const auto bin  = [&](int32_t at) { return static_cast<uint32_t>(values[at]) >> shift & (n_bins - 1); };
        Counts     ends = {};
        for (const int32_t at : places) {
            ++ends[bin(at)];
        }
        std::partial_sum(ends.begin(), ends.end(), ends.begin());
        std::for_each(places.rbegin(), places.rend(), [&](int32_t at) { next[--ends[bin(at)]] = at; });
        places.swap(next);
    }
    return places;
}

} // namespace spac
