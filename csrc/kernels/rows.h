// One expert's weights times the rows of input that were routed to it. ggml computes each pair (row of weights, row of
// input) by itself and unpacks the weights anew for each; a verification of a few tokens routes one to four rows to an
// expert, so here weights are unpacked once for up to four. Results are ggml's, bit for bit: same operations in the
// same order on every lane.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace spac::kernels {

// n_weights rows of weights times n_inputs rows of inputs.
struct Rows {
    int64_t              n; // elements of a row
    const char *         weights;
    size_t               stride; // bytes from one row of weights to the next
    int64_t              n_weights;
    const void * const * inputs;  // quantized to what ggml multiplies this type with
    float * const *      results; // of each input: one float per row of weights
    int64_t              n_inputs;
};

struct Kernel {
    // False where an input is none that ggml's quantization makes of numbers: then results are ggml's to compute.
    bool (*dot)(const Rows & rows) = nullptr;
    int block                      = 0; // n is a multiple of it
    int min_inputs                 = 1; // below, ggml's own is as fast
};

// Of a ggml_type; `dot` is null where there is none, or where its results are not ggml's on this machine: each is
// compared with ggml's own before it is used for the first time.
const Kernel & trusted_kernel(int type);
bool           quantization_is_trusted(); // of quantize.h, likewise

// All that is there for this processor, and those of it that are used, by ggml's names.
std::vector<std::string> kernel_names();
std::vector<std::string> trusted_kernel_names();

// For the whole process; at first as SPAC_CPU_KERNELS says, on where it says nothing. Off, every pair is computed by
// ggml's own.
void enable(bool on);
bool enabled();

} // namespace spac::kernels
