// Counters of time: nanoseconds of a monotonic clock.
#pragma once

#include "core/not_copied.h"

#include <atomic>
#include <chrono>
#include <cstdint>

namespace spac {

using Clock = std::chrono::steady_clock;

inline int64_t ns_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count();
}

// Adds the time of a scope to a counter.
class Timer : NotCopied {
  public:
    explicit Timer(std::atomic<uint64_t> & total) : total_(total), start_(Clock::now()) {}
    ~Timer() { total_ += static_cast<uint64_t>(ns_since(start_)); }

  private:
    std::atomic<uint64_t> & total_;
    Clock::time_point       start_;
};

} // namespace spac
