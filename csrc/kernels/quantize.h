// Quantizes a row of inputs for the kernels.
#pragma once

#include <cstdint>

namespace spac::kernels {

// Quantizes to q8_K; n is a multiple of 256. Leaves the bytes in y that ggml's own code for x86 leaves: that code has
// no fused multiply-add, and leaves the sums of a block of zeros as they were. Works only where there are kernels.
void quantize_q8_K(const float * x, void * y, int64_t n);

} // namespace spac::kernels
