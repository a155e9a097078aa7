// The time that a thread waits for the device or for the helper before it gives up (set_gate_timeout).
//
// A waiting thread looks at the clock again and again, and one look adds 250 ms at most. So the time in which a process
// was stopped, or the machine slept, does not count as waiting.
#pragma once

#include "backend/device/settings.h"

#include <algorithm>
#include <chrono>

namespace spac {

class Patience {
  public:
    // The interval of looks for a thread that sleeps while it waits.
    static constexpr std::chrono::milliseconds look = std::chrono::milliseconds(100);

    // Returns true if the wait that began with this object has lasted too long. Call it again and again.
    bool over() {
        const auto now = Clock::now();
        waited_ += std::min<Clock::duration>(now - last_, std::chrono::milliseconds(250));
        last_ = now;
        return limit_ > 0 && std::chrono::duration<double>(waited_).count() > limit_;
    }

  private:
    using Clock = std::chrono::steady_clock;

    const double      limit_  = gate_timeout(); // seconds; 0: no limit
    Clock::time_point last_   = Clock::now();
    Clock::duration   waited_ = Clock::duration::zero();
};

} // namespace spac
