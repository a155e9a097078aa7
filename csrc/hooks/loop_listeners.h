// The callbacks of a loop of llama.cpp's server, besides those of Listeners.
#pragma once

#include "session/parallel.h"

#include <cstdint>
#include <functional>

namespace spac {

// Callbacks on the loop's thread, besides those of Listeners.
struct LoopListeners {
    // Returns how many tokens each of the slots that draft may draft in the next step.
    std::function<int(int n_slots, int n_max)> draft_length;
    // Called before the prompt of a request's text is read, with the number of an own request, or 0. What it throws
    // refuses the request.
    std::function<void(uint64_t number)> text_begin;
    // Called when a device had no memory for a decode. Returns true if it has more now.
    std::function<bool()> memory_full;
    // Called when a decode's tokens are sampled. Each slot that sampled is one of the step's sequences. A decode with
    // prompts is no verification, and its drafts do not count.
    std::function<void(const ParallelStep & step, double seconds)> step_end;
    // Calls `listeners`, which are several others, so that the host language takes its lock once.
    std::function<void(const std::function<void()> & listeners)> together;
};

} // namespace spac
