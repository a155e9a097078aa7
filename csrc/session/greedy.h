// The greedy choice of a draft's next token.
#pragma once

#include <cstdint>

namespace spac {

// Returns the place of the largest value. Returns -1 if several are as large, or if one is not a number; n > 0.
int32_t only_largest(const float * logits, int n);

// Returns a draft's next token, the first of the most probable ones; n > 0. Returns -1 if its share of the ten most
// probable ones' probability is below `p_min`, as in llama.cpp's drafts.
int32_t greedy_choice(const float * logits, int n, float p_min);

} // namespace spac
