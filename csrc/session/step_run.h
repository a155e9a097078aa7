// Calls of several steps: how long they go on, and the sum of their results.
#pragma once

#include "session/clock.h"
#include "session/session.h"

namespace spac {

// Says whether a further step of a call is sure to end in time, as long as it takes no longer than the longest before.
class StepTimer {
  public:
    explicit StepTimer(const StepRun & run) : run_(run) {}
    // Call this after each step.
    bool goes_on();

  private:
    StepRun           run_;
    Clock::time_point start_   = Clock::now();
    int64_t           before_  = 0; // time of the steps before the last one
    int64_t           longest_ = 0;
    int               n_steps_ = 0;
};

// Adds the tokens, counts and times of the next step of a call. What a step only has at its end is the next one's.
void add(Step & sum, const Step & next);

} // namespace spac
