// The sampling of tokens: llama.cpp's parameters, and the shorter way to a greedy choice.
#pragma once

#include "common.h"
#include "sampling.h"
#include "session/session.h"

#include <cstddef>
#include <functional>

namespace spac {

// Returns llama.cpp's parameters for a SamplingConfig. Checks every value that llama.cpp would abort on or misread, and
// throws InputError with the parameter's name and range.
common_params_sampling sampling_params(const SamplingConfig & config, const llama_model * model, int n_ctx);

// Adds penalties to a chain for Mirostat, in which common has none. It is before any token.
void add_penalties(const common_sampler * sampler, const llama_model * model, const common_params_sampling & params);

// Returns true if the sampler can choose nothing but the largest logit: one candidate is left, and no member of the
// chain changes the order of the logits or drops the largest one. `params` are those of its making.
bool is_greedy(const common_sampler * sampler, const common_params_sampling & params);

// Returns the token with the largest logit of a row, or -1 if the row has none that is larger than all others. The
// sampler's chain, which decides between these, would copy and sort all logits for it. That takes longer than a small
// model's attention.
llama_token greedy_token(llama_context * ctx, int row);

// Samples tokens for a draft and one more, up to the first that differs from the draft. `choose` returns the token of
// the i-th place. Nothing follows an end inside of the draft, as in common_sampler_sample_and_accept_n.
llama_tokens sample_draft(common_sampler * sampler, const llama_vocab * vocab, const llama_tokens & draft,
                          const std::function<llama_token(size_t i)> & choose);

} // namespace spac
