// Measures the parts of a step in nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>

namespace spac {

using Clock = std::chrono::steady_clock;

inline int64_t since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

} // namespace spac
