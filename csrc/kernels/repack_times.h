// Measures how long llama.cpp's CPU backend takes with weights as a file has them, and with repacked ones.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace spac::kernels {

// The measured products: with the experts of a layer (mul_mat_id), or with a dense matrix (mul_mat).
enum class Task { experts_of_token, experts_of_prompt, dense_of_token, dense_of_prompt };
constexpr int n_tasks = 4;

// Seconds by task, for each token and each gigabyte (1e9 bytes) of weights that the token is multiplied with.
using TaskTimes = std::array<double, n_tasks>;

struct FormTimes {
    TaskTimes plain{};    // as the file has them; spac's kernels are used where they are on
    TaskTimes repacked{}; // equal to `plain` for a task that llama.cpp has no repacked kernels for
    bool      can_repack = false;
};

// Returns the ggml_type of a name whose weights can be measured, which is a quantized type. Returns -1 for other names.
int quantized_type(const std::string & name);

// Returns true if llama.cpp has repacked kernels for weights of this ggml_type on this CPU, for any task.
bool can_repack(int type);

struct MeasuredForms {
    std::vector<FormTimes> times;   // for each type
    double                 running; // the share of the time for which the threads ran: other programs took the rest
};

// Measures both forms of each ggml_type in turns, with `n_threads` threads. A token takes eight of 32 or more experts,
// which come from memory; a prompt has 64 tokens. Times are medians of several rounds. A task ends after a quarter of
// `seconds`, but not before its third round. Throws std::bad_alloc if memory is lacking.
MeasuredForms time_forms(const std::vector<int> & types, int n_threads, double seconds);

} // namespace spac::kernels
