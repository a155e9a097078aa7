// One sequence's sampler: it chooses the tokens of a verification.
#pragma once

#include "common.h"
#include "sampling.h"
#include "session/grammar.h"
#include "session/session.h"

#include <cstddef>
#include <cstdint>
#include <functional>

namespace spac {

class TokenSampler {
  public:
    // `model` and `n_ctx` are the target's. Throws InputError for invalid settings.
    TokenSampler(const SamplingConfig & config, const llama_model * model, int n_ctx);

    // Sets how to sample from the next begin() on. Throws InputError for invalid settings, and changes nothing then.
    void set(const SamplingConfig & config);

    // Begins a new prompt: the sampler starts anew and has seen these tokens.
    void begin(const int32_t * prompt, size_t n_tokens);

    // Returns the draft tokens that the target accepts, then its own. Row `first_row` of the context's logits is that
    // of the token before the draft.
    llama_tokens sample(llama_context * ctx, const llama_tokens & draft, int first_row = 0);

  private:
    common_sampler_ptr make() const;

    const llama_model *    model_;
    int                    n_ctx_;
    common_params_sampling params_;
    bool                   mirostat_penalizes_;
    common_sampler_ptr     sampler_;
    bool                   greedy_;         // every token is the one with the largest logit
    GrammarBudget          grammar_budget_; // of this text
};

// Returns llama.cpp's parameters for a SamplingConfig. Checks every value that llama.cpp would abort on or misread, and
// throws InputError with the parameter's name and range.
common_params_sampling sampling_params(const SamplingConfig & config, const llama_model * model, int n_ctx);

// Returns a sampler at its start (seeded, grammar at its root). Throws InputError if the grammar cannot be parsed.
common_sampler_ptr make_sampler(const llama_model * model, common_params_sampling params);

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

// Returns the error for the exception that a sampler has thrown. Call it where that is caught.
std::exception_ptr sampler_fault();

} // namespace spac
