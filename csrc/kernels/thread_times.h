// Measures with how many threads the CPU computes a token fastest.
#pragma once

#include <vector>

namespace spac::kernels {

struct MeasuredThreads {
    std::vector<double> seconds; // for each number of threads, for the same work
    double              running; // the share of the time for which the threads ran: other programs took the rest
};

// Measures products of one token with experts of this ggml_type, which come from memory, for each number of threads in
// turns. Times are medians of several rounds. The measurement ends after `seconds`, but not before its third round.
// Throws std::bad_alloc if memory is lacking.
MeasuredThreads time_threads(int type, const std::vector<int> & n_threads, double seconds);

} // namespace spac::kernels
