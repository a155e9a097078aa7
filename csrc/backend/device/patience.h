// How long a thread waits for the device or for the helper before it gives up (set_gate_timeout).
//
// Time counts as far as it is looked at: a look counts 250 ms at most. A process that was stopped and goes on, or a
// machine that slept, has not waited.
#pragma once

#include "backend/device/settings.h"

#include <algorithm>
#include <chrono>

namespace spac {

class Patience {
  public:
    // Who sleeps while it waits looks this often.
    static constexpr std::chrono::milliseconds look = std::chrono::milliseconds(100);

    // Whether the wait that began with this object has lasted too long; to be asked again and again.
    bool over() {
        const auto now = Clock::now();
        waited_ += std::min<Clock::duration>(now - last_, std::chrono::milliseconds(250));
        last_ = now;
        return limit_ > 0 && std::chrono::duration<double>(waited_).count() > limit_;
    }

  private:
    using Clock = std::chrono::steady_clock;

    const double      limit_  = gate_timeout(); // seconds; 0: none
    Clock::time_point last_   = Clock::now();
    Clock::duration   waited_ = Clock::duration::zero();
};

} // namespace spac
