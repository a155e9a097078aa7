#include "session/token_probabilities.h"

#include "core/error.h"
#include "llama.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace spac {

namespace {

// Returns the logarithm of the sum of all exponentials. A logit less this is a log probability.
double log_sum(const float * logits, int n_vocab) {
    const double most = *std::max_element(logits, logits + n_vocab);
    double       sum  = 0;
    for (int token = 0; token < n_vocab; ++token) {
        sum += std::exp(static_cast<double>(logits[token]) - most);
    }
    return most + std::log(sum);
}

} // namespace

TokenProbabilities token_probabilities(llama_context * ctx, const std::vector<int32_t> & tokens, int n_top,
                                       int first_row) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    if (n_top < 0) {
        throw InputError("n_top is " + std::to_string(n_top) + ", expected a value from 0");
    }
    TokenProbabilities result;
    result.n_top = std::min(n_top, n_vocab);
    std::vector<int32_t> order(static_cast<size_t>(n_vocab));
    for (size_t row = 0; row < tokens.size(); ++row) {
        const float * logits = llama_get_logits_ith(ctx, first_row + static_cast<int32_t>(row));
        SPAC_CHECK(logits != nullptr, row, tokens.size());
        const double total       = log_sum(logits, n_vocab);
        const auto   logarithm   = [&](int32_t token) { return static_cast<float>(logits[token] - total); };
        const auto   is_likelier = [&](int32_t a, int32_t b) {
            return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
        };
        result.chosen.push_back(logarithm(tokens[row]));
        if (result.n_top > 0) {
            std::iota(order.begin(), order.end(), 0);
            std::partial_sort(order.begin(), order.begin() + result.n_top, order.end(), is_likelier);
        }
        for (int i = 0; i < result.n_top; ++i) {
            result.top_ids.push_back(order[static_cast<size_t>(i)]);
            result.top.push_back(logarithm(order[static_cast<size_t>(i)]));
        }
    }
    return result;
}

} // namespace spac
