// The measurements of kernels share these functions.
#pragma once

#include "ggml.h"

#include <vector>

namespace spac::kernels {

// Returns blocks of random bytes whose weights are numbers that a model has: what is not finite or subnormal takes
// other times.
std::vector<char> some_blocks(ggml_type type);

// Fills memory with such blocks, again and again.
void fill(char * memory, size_t n_bytes, const std::vector<char> & blocks);

// Returns 0 for no numbers.
double median(std::vector<double> x);

// Returns the bytes of the largest cache that cores share; 0 where the system does not tell.
size_t shared_cache();

} // namespace spac::kernels
