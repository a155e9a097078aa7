// Declares all kernels, by ggml's names of types.
#pragma once

#include "kernels/rows.h"

namespace spac::kernels {

extern const Kernel q4_K, q5_K, q6_K;
extern const Kernel q2_K, q3_K, iq4_xs;
extern const Kernel q8_0, q4_0, q5_0, iq4_nl, mxfp4, nvfp4, q4_1, q5_1;
extern const Kernel iq3_xxs, iq2_xxs, iq2_xs, iq2_s, iq3_s, iq1_s, iq1_m;

} // namespace spac::kernels
