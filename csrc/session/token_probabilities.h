// What the logits of a model's last evaluation say: the probabilities of tokens, and the greedy choice.
#pragma once

#include <cstdint>
#include <vector>

struct llama_context;

namespace spac {

// Natural logarithms of the softmax over the whole vocabulary, before any sampler.
struct TokenProbabilities {
    int                  n_top = 0; // alternatives for each token; no more than the vocabulary has
    std::vector<float>   chosen;    // [n_tokens]
    std::vector<int32_t> top_ids;   // [n_tokens * n_top]: the most probable tokens, best first, equal ones by number
    std::vector<float>   top;       // [n_tokens * n_top]
};

// Returns the probabilities of tokens that the rows of the context's last evaluation chose, the first one by
// `first_row`.
TokenProbabilities token_probabilities(llama_context * ctx, const std::vector<int32_t> & tokens, int n_top,
                                       int first_row);

// Returns the place of the largest value. Returns -1 if several are as large, or if one is not a number; n > 0.
int32_t only_largest(const float * logits, int n);

// Returns a draft's next token, the first of the most probable ones; n > 0. Returns -1 if its share of the ten most
// probable ones' probability is below `p_min`, as in llama.cpp's drafts.
int32_t greedy_choice(const float * logits, int n, float p_min);

} // namespace spac
