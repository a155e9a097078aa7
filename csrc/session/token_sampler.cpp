#include "session/token_sampler.h"

#include "session/grammar.h"
#include "session/projector.h"
#include "session/sampler.h"
#include "session/token_probabilities.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

namespace spac {

TokenSampler::TokenSampler(const SamplingConfig & config, const llama_model * model, int n_ctx)
    : model_(model), n_ctx_(n_ctx), params_(sampling_params(config, model, n_ctx)),
      mirostat_penalizes_(config.mirostat_penalizes), sampler_(make()), greedy_(is_greedy()) {}

// Returns a sampler at its start. common's chain for Mirostat has no penalties.
common_sampler_ptr TokenSampler::make() const {
    auto sampler = make_sampler(model_, params_);
    if (mirostat_penalizes_ && params_.mirostat != 0) {
        auto * const chain    = common_sampler_get(sampler.get());
        const int    n        = llama_sampler_chain_n(chain);
        auto * const mirostat = llama_sampler_chain_remove(chain, n - 1);
        auto * const temp     = llama_sampler_chain_remove(chain, n - 2);
        auto * const penalties =
            llama_sampler_init_penalties(llama_vocab_n_tokens(llama_model_get_vocab(model_)), params_.penalty_last_n,
                                         params_.penalty_repeat, params_.penalty_freq, params_.penalty_present);
        for (auto * const each : {penalties, temp, mirostat}) {
            llama_sampler_chain_add(chain, each);
        }
    }
    return sampler;
}

void TokenSampler::set(const SamplingConfig & config) {
    auto params = sampling_params(config, model_, n_ctx_);
    make_sampler(model_, params); // a grammar shows its faults only here
    params_             = std::move(params);
    mirostat_penalizes_ = config.mirostat_penalizes;
}

void TokenSampler::begin(const int32_t * prompt, size_t n_tokens) {
    // A sampler cannot be reset as a whole: its grammar would stay where it is.
    sampler_      = make();
    greedy_       = is_greedy();
    grammar_work_ = 0;
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!is_placeholder(prompt[i])) {
            common_sampler_accept(sampler_.get(), prompt[i], false);
        }
    }
}

// Returns true if the sampler can choose nothing but the largest logit: one candidate is left, and no member of the
// chain changes the order of the logits or drops the largest one.
bool TokenSampler::is_greedy() const {
    // Members that leave everything as it is have names with "?" in front.
    constexpr std::array<std::string_view, 4> keeps_the_largest = {"top-n-sigma", "top-p", "min-p", "dist"};
    if (!common_grammar_value(params_.grammar).empty() || !params_.reasoning_budget_start.empty()) {
        return false;
    }
    auto * const chain    = common_sampler_get(sampler_.get());
    bool         one_left = false;
    for (int i = 0; i < llama_sampler_chain_n(chain); ++i) {
        const std::string_view name = llama_sampler_name(llama_sampler_chain_get(chain, i));
        if (name == "top-k") {
            one_left = one_left || params_.top_k == 1;
        } else if (name == "temp-ext") {
            one_left = one_left || (params_.temp <= 0 && params_.dynatemp_range <= 0);
        } else if (name.front() != '?' &&
                   std::find(keeps_the_largest.begin(), keeps_the_largest.end(), name) == keeps_the_largest.end()) {
            return false;
        }
    }
    return one_left;
}

// Returns the token for a row of logits. The chain would copy and sort all logits, which takes longer than a small
// model's attention. It decides between logits that are equally large.
llama_token TokenSampler::choose(llama_context * ctx, int row) {
    if (greedy_) {
        const float * const logits = llama_get_logits_ith(ctx, row);
        const int           n      = llama_vocab_n_tokens(llama_model_get_vocab(model_));
        const llama_token   token  = logits != nullptr ? only_largest(logits, n) : -1;
        if (token >= 0) {
            return token;
        }
    }
    return common_sampler_sample(sampler_.get(), ctx, row);
}

// A text may use 10 s for its grammar, and 20 ms for each token beside.
void TokenSampler::check_work(uint64_t work, size_t n_tokens) {
    constexpr uint64_t once = 10'000'000'000, each = 20'000'000;
    grammar_work_ += work - std::min(work + grammar_work_, each * n_tokens);
    if (grammar_work_ > once) {
        throw InputError("the grammar takes too long for this text: it has too many alternatives at each place");
    }
}

llama_tokens TokenSampler::sample(llama_context * ctx, const llama_tokens & draft, int first_row) {
    const auto * const vocab = llama_model_get_vocab(model_);
    const GrammarScope scope;
    llama_tokens       tokens;
    for (size_t i = 0; i <= draft.size(); ++i) {
        const llama_token token = choose(ctx, first_row + static_cast<int>(i));
        common_sampler_accept(sampler_.get(), token, true);
        tokens.push_back(token);
        // Nothing follows an end inside of the draft, as in common_sampler_sample_and_accept_n.
        if (i == draft.size() || draft[i] != token || (i + 1 < draft.size() && llama_vocab_is_eog(vocab, token))) {
            break;
        }
    }
    check_work(scope.work(), tokens.size());
    return tokens;
}

} // namespace spac
