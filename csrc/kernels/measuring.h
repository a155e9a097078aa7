// Functions that the measurements of kernels share.
#pragma once

#include "ggml.h"

#include <vector>

namespace spac::kernels {

// Returns blocks of random bytes whose weights are numbers that a model has. Numbers that are subnormal or not finite
// take other times.
std::vector<char> some_blocks(ggml_type type);

// Fills memory with such blocks, again and again.
void fill(char * memory, size_t n_bytes, const std::vector<char> & blocks);

// Returns the median, or 0 if there are no numbers.
double median(std::vector<double> x);

// Returns the bytes of the largest cache that cores share, or 0 if the system does not tell.
size_t shared_cache();

} // namespace spac::kernels
