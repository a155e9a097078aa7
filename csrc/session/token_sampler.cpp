#include "session/token_sampler.h"

#include "session/image_table.h"
#include "session/sampler.h"

#include <numeric>
#include <utility>
#include <vector>

namespace spac {

TokenSampler::TokenSampler(const SamplingConfig & config, const llama_model * model, int n_ctx)
    : model_(model), n_ctx_(n_ctx), params_(sampling_params(config, model, n_ctx)),
      mirostat_penalizes_(config.mirostat_penalizes), sampler_(make()) {}

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
    sampler_ = make();
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!is_placeholder(prompt[i])) {
            common_sampler_accept(sampler_.get(), prompt[i], false);
        }
    }
}

llama_tokens TokenSampler::sample(llama_context * ctx, const llama_tokens & draft, int first_row) {
    std::vector<int> rows(draft.size() + 1);
    std::iota(rows.begin(), rows.end(), first_row);
    return common_sampler_sample_and_accept_n(sampler_.get(), ctx, rows, draft);
}

} // namespace spac
