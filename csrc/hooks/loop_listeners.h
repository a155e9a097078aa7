// The callbacks of a loop of llama.cpp's server, besides the events of a session.
#pragma once

#include "session/parallel.h"

#include <functional>

namespace spac {

// Callbacks on the loop's thread, besides those of Listeners.
struct LoopListeners {
    // Returns how many tokens each of the slots that draft may draft in the next step.
    std::function<int(int n_slots, int n_max)> draft_length;
    // Called when a decode's tokens are sampled. Each slot that sampled is one of the step's sequences. A decode with
    // prompts is no verification, and its drafts do not count.
    std::function<void(const ParallelStep & step, double seconds)> step_end;
    // Called before and after drafting, each decode of the target and each verify_end. What changes slots waits
    // meanwhile. `leave` must not throw.
    std::function<void()> enter, leave;
};

} // namespace spac
