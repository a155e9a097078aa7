// Rounding without a call: nearbyint() and llrint() are calls where the compiler may not assume SSE4.1.
#pragma once

#include <cstdint>

namespace spac {

// To the nearest, ties to even, for |x| < 2^51.
inline double rounded(double x) {
    constexpr double shift = 3.0 * (int64_t{1} << 51);
    return (x + shift) - shift;
}

} // namespace spac
