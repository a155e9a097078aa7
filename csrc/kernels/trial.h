// Measures on this machine which way of computing is the fastest for a type of weights (rows.h).
#pragma once

#include "kernels/rows.h"

namespace spac::kernels {

constexpr int trial_inputs = 8; // the most rows of input in a trial

// Seconds that one thread takes for the rows of one trial.
struct TrialTimes {
    std::array<double, n_ways> one, several; // with one row of input, and with two and then eight; 0 without this way
    double                     dense;        // of ggml's kernels for dense matrices, with two and eight; 0 without them
};

struct Measured {
    std::vector<TrialTimes> times; // for each type
    double running; // the share of its time for which the least favoured thread ran: other programs took the rest
};

// Measures the ways of each ggml_type in turns, with `n_threads` threads that compute at once, each from memory of its
// own that no cache holds. Times are medians of several rounds. A type ends after `seconds`, but not before its third
// round. Throws std::bad_alloc if memory is lacking.
Measured run_trial(const std::vector<int> & types, int n_threads, double seconds);

// Returns the bytes of weights of a ggml_type that a thread multiplies in such a time.
size_t trial_bytes(int type);

} // namespace spac::kernels
