// ggml's own kernels for a dense matrix and several rows of input (llamafile's), which it has for some types.
#pragma once

#include "kernels/rows.h"

namespace spac::kernels {

enum class Dense : uint8_t {
    none,      // ggml has no such kernels for the type
    equal,     // their results are those of ggml's products of pairs on this machine, bit for bit
    different, // they are not
};
Dense dense_kernels(int type);

// Computes rows by them. Rows of input lie one behind another, and so do rows of results. Returns false where ggml has
// none for the type or for this number of rows of input.
bool multiply_dense(const Rows & rows, int type);

} // namespace spac::kernels
