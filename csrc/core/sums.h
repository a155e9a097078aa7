// Sums and medians in numpy's order, so that what is computed here is to the bit what its reference computes there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

namespace spac {

// As numpy's sum() along a contiguous axis.
inline double pairwise_sum(const double * values, size_t n) {
    if (n > 128) {
        const size_t half = n / 2 - n / 2 % 8;
        return pairwise_sum(values, half) + pairwise_sum(values + half, n - half);
    }
    double sum  = 0;
    size_t next = 0;
    if (n >= 8) {
        double r[8];
        std::copy_n(values, 8, r);
        for (next = 8; next < n - n % 8; next += 8) {
            for (size_t k = 0; k < 8; ++k) {
                r[k] += values[next + k];
            }
        }
        sum = ((r[0] + r[1]) + (r[2] + r[3])) + ((r[4] + r[5]) + (r[6] + r[7]));
    }
    for (; next < n; ++next) {
        sum += values[next];
    }
    return sum;
}

// Of at least one value, whose order it changes; of an even number, the mean of the two in the middle.
inline double median(std::vector<double> & values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return values.size() % 2 == 1 ? *middle : (*std::max_element(values.begin(), middle) + *middle) / 2;
}

} // namespace spac
