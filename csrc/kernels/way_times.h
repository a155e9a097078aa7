// Measures how long each way takes on this machine (rows.h).
#pragma once

#include "kernels/rows.h"

namespace spac::kernels {

// Seconds that one thread takes for the rows of one trial, for 1 to max_inputs rows of input.
struct WayTimes {
    std::array<std::array<double, n_ways>, max_inputs> ways;  // 0 if the way does not exist or is not trusted
    std::array<double, max_inputs>                     dense; // of ggml's kernels for dense matrices; 0 without them
};

struct Measured {
    std::vector<WayTimes> times; // for each type
    double running; // the share of its time for which the least favoured thread ran: other programs took the rest
};

// Measures the ways of each ggml_type in turns, with `n_threads` threads that compute at once, each from memory of its
// own that no cache holds. Times are medians of several rounds. A type ends after `seconds`, but not before its third
// round. Throws std::bad_alloc if memory is lacking.
Measured time_ways(const std::vector<int> & types, int n_threads, double seconds);

// Returns the bytes of weights of a ggml_type that a thread multiplies in the seconds of time_ways.
size_t trial_bytes(int type);

} // namespace spac::kernels
