// A row of inputs as kernels read it.
#pragma once

#include <cstdint>

namespace spac::kernels {

// To q8_K, n a multiple of 256: the bytes that ggml's own code for x86 leaves in y. That has no fused multiply-add, and
// leaves the sums of a block of zeros as they were. Only where there are kernels.
void quantize_q8_K(const float * x, void * y, int64_t n);

} // namespace spac::kernels
