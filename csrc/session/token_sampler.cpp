#include "session/token_sampler.h"

#include "session/grammar.h"
#include "session/token_probabilities.h"

#include <algorithm>
#include <array>
#include <climits>
#include <cmath>
#include <sstream>
#include <string_view>

namespace spac {

namespace {

template <typename T> void check_range(const char * name, T value, T low, T high) {
    // The condition has this form so that NaN fails too.
    if (!(value >= low && value <= high)) {
        std::ostringstream message;
        message << name << " is " << value << ", expected a value from " << low << " to " << high;
        throw InputError(message.str());
    }
}

void check_ranges(const SamplingConfig & config) {
    constexpr float big = 1e6f;
    check_range("temp", config.temp, -big, big);
    check_range("top_p", config.top_p, 0.0f, 1.0f);
    check_range("min_p", config.min_p, 0.0f, 1.0f);
    check_range("typ_p", config.typ_p, 0.0f, 1.0f);
    check_range("top_n_sigma", config.top_n_sigma, -1.0f, big);
    check_range("xtc_probability", config.xtc_probability, 0.0f, 1.0f);
    check_range("xtc_threshold", config.xtc_threshold, 0.0f, 1.0f);
    check_range("dynatemp_range", config.dynatemp_range, 0.0f, big);
    check_range("dynatemp_exponent", config.dynatemp_exponent, 0.0f, big);
    check_range("repeat_last_n", config.repeat_last_n, -1, 1 << 24);
    check_range("repeat_penalty", config.repeat_penalty, 1e-6f, big);
    check_range("frequency_penalty", config.frequency_penalty, -big, big);
    check_range("presence_penalty", config.presence_penalty, -big, big);
    check_range("dry_multiplier", config.dry_multiplier, 0.0f, big);
    check_range("dry_base", config.dry_base, 0.0f, big);
    check_range("dry_allowed_length", config.dry_allowed_length, 0, 1 << 24);
    check_range("dry_penalty_last_n", config.dry_penalty_last_n, -1, 1 << 24);
    check_range("mirostat", config.mirostat, 0, 2);
    check_range("mirostat_lr", config.mirostat_lr, 0.0f, big);
    check_range("mirostat_ent", config.mirostat_ent, 0.0f, big);
    check_range("reasoning_budget", config.reasoning_budget, -1, INT_MAX);
}

std::vector<common_sampler_type> sampler_types(const std::vector<std::string> & names) {
    std::vector<common_sampler_type> types;
    for (const auto & name : names) {
        // Each name is looked up alone, because common drops the names that it does not know.
        const auto found = common_sampler_types_from_names({name});
        if (found.empty()) {
            throw InputError("unknown sampler '" + name +
                             "', known are penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, temperature, "
                             "infill, adaptive_p");
        }
        types.push_back(found.front());
    }
    return types;
}

void add_logit_bias(const SamplingConfig & config, const llama_vocab * vocab, common_params_sampling & params) {
    const int n_vocab = llama_vocab_n_tokens(vocab);
    for (const auto & [token, bias] : config.logit_bias) {
        if (token < 0 || token >= n_vocab) {
            throw InputError("logit_bias names token " + std::to_string(token) + ", the vocabulary has tokens 0 to " +
                             std::to_string(n_vocab - 1));
        }
        params.logit_bias.push_back({token, bias});
    }
    if (config.ignore_eos) {
        for (llama_token token = 0; token < n_vocab; ++token) {
            if (llama_vocab_is_eog(vocab, token)) {
                params.logit_bias.push_back({token, -INFINITY});
            }
        }
    }
}

} // namespace

common_params_sampling sampling_params(const SamplingConfig & config, const llama_model * model, int n_ctx) {
    check_ranges(config);

    common_params_sampling params;
    params.seed               = config.seed.value_or(LLAMA_DEFAULT_SEED);
    params.temp               = config.temp;
    params.top_k              = config.top_k;
    params.top_p              = config.top_p;
    params.min_p              = config.min_p;
    params.typ_p              = config.typ_p;
    params.top_n_sigma        = config.top_n_sigma;
    params.xtc_probability    = config.xtc_probability;
    params.xtc_threshold      = config.xtc_threshold;
    params.dynatemp_range     = config.dynatemp_range;
    params.dynatemp_exponent  = config.dynatemp_exponent;
    params.penalty_last_n     = config.repeat_last_n < 0 ? n_ctx : config.repeat_last_n;
    params.penalty_repeat     = config.repeat_penalty;
    params.penalty_freq       = config.frequency_penalty;
    params.penalty_present    = config.presence_penalty;
    params.dry_multiplier     = config.dry_multiplier;
    params.dry_base           = config.dry_base;
    params.dry_allowed_length = config.dry_allowed_length;
    params.dry_penalty_last_n = config.dry_penalty_last_n < 0 ? n_ctx : config.dry_penalty_last_n;
    params.mirostat           = config.mirostat;
    params.mirostat_eta       = config.mirostat_lr;
    params.mirostat_tau       = config.mirostat_ent;
    params.n_prev             = std::max(params.n_prev, params.penalty_last_n);
    params.ignore_eos         = config.ignore_eos;
    params.no_perf            = true;
    if (config.samplers) {
        params.samplers = sampler_types(*config.samplers);
    }
    if (!config.grammar.empty()) {
        params.grammar = common_grammar(COMMON_GRAMMAR_TYPE_USER, config.grammar);
    }
    if (config.chat != nullptr) {
        config.chat->constrain(params, config.reasoning_budget);
    }
    const auto * const vocab = llama_model_get_vocab(model);
    if (!params.grammar.empty()) {
        check_grammar(vocab, common_grammar_value(params.grammar), params.grammar.type == COMMON_GRAMMAR_TYPE_USER);
    }
    add_logit_bias(config, vocab, params);
    return params;
}

void add_penalties(const common_sampler * sampler, const llama_model * model, const common_params_sampling & params) {
    if (params.mirostat == 0) {
        return;
    }
    auto * const chain    = common_sampler_get(sampler);
    const int    n        = llama_sampler_chain_n(chain);
    auto * const mirostat = llama_sampler_chain_remove(chain, n - 1);
    auto * const temp     = llama_sampler_chain_remove(chain, n - 2);
    auto * const penalties =
        llama_sampler_init_penalties(llama_vocab_n_tokens(llama_model_get_vocab(model)), params.penalty_last_n,
                                     params.penalty_repeat, params.penalty_freq, params.penalty_present);
    for (auto * const each : {penalties, temp, mirostat}) {
        llama_sampler_chain_add(chain, each);
    }
}

bool is_greedy(const common_sampler * sampler, const common_params_sampling & params) {
    // Members that leave everything as it is have names with "?" in front.
    constexpr std::array<std::string_view, 4> keeps_the_largest = {"top-n-sigma", "top-p", "min-p", "dist"};
    if (!common_grammar_value(params.grammar).empty() || !params.reasoning_budget_start.empty()) {
        return false;
    }
    auto * const chain    = common_sampler_get(sampler);
    bool         one_left = false;
    for (int i = 0; i < llama_sampler_chain_n(chain); ++i) {
        const std::string_view name = llama_sampler_name(llama_sampler_chain_get(chain, i));
        if (name == "top-k") {
            one_left = one_left || params.top_k == 1;
        } else if (name == "temp-ext") {
            one_left = one_left || (params.temp <= 0 && params.dynatemp_range <= 0);
        } else if (name.front() != '?' &&
                   std::find(keeps_the_largest.begin(), keeps_the_largest.end(), name) == keeps_the_largest.end()) {
            return false;
        }
    }
    return one_left;
}

llama_token greedy_token(llama_context * ctx, int row) {
    const float * const logits = llama_get_logits_ith(ctx, row);
    return logits != nullptr ? only_largest(logits, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx))))
                             : -1;
}

llama_tokens sample_draft(common_sampler * sampler, const llama_vocab * vocab, const llama_tokens & draft,
                          const std::function<llama_token(size_t i)> & choose) {
    llama_tokens tokens;
    for (size_t i = 0; i <= draft.size(); ++i) {
        const llama_token token = choose(i);
        common_sampler_accept(sampler, token, true);
        tokens.push_back(token);
        if (i == draft.size() || draft[i] != token || (i + 1 < draft.size() && llama_vocab_is_eog(vocab, token))) {
            break;
        }
    }
    return tokens;
}

} // namespace spac
