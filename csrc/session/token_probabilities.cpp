#include "session/token_probabilities.h"

#include "core/error.h"
#include "llama.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
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

// Returns the place of the first of the largest values.
int32_t largest(const float * logits, int n) {
    // Each lane has the largest value of its column, so that the compiler compares many at once.
    constexpr int              n_lanes = 32, block = 64 * n_lanes;
    float                      best = -std::numeric_limits<float>::infinity();
    int                        at   = 0;
    std::array<float, n_lanes> lanes{};
    for (int first = 0; first < n; first += block) {
        const int end = std::min(n, first + block), whole = first + (end - first) / n_lanes * n_lanes;
        lanes.fill(-std::numeric_limits<float>::infinity());
        for (int i = first; i < whole; i += n_lanes) {
            for (int lane = 0; lane < n_lanes; ++lane) {
                lanes[lane] = logits[i + lane] > lanes[lane] ? logits[i + lane] : lanes[lane];
            }
        }
        float most = *std::max_element(lanes.begin(), lanes.end());
        for (int i = whole; i < end; ++i) {
            most = std::max(most, logits[i]);
        }
        if (most > best) {
            best = most;
            at   = static_cast<int>(std::find(logits + first, logits + end, most) - logits);
        }
    }
    return at;
}

// Returns the share of the largest value's probability in that of the ten largest ones.
float confidence(const float * logits, int n, float best) {
    constexpr int         block = 64;
    std::array<float, 10> most{}; // the largest values so far, in falling order
    most.fill(-std::numeric_limits<float>::infinity());
    for (int first = 0; first < n; first += block) {
        const int end  = std::min(n, first + block);
        float     high = most.back();
        for (int i = first; i < end; ++i) { // the compiler compares many at once
            high = logits[i] > high ? logits[i] : high;
        }
        for (int i = high > most.back() ? first : end; i < end; ++i) {
            if (logits[i] > most.back()) {
                const auto at = std::upper_bound(most.begin(), most.end(), logits[i], std::greater<>());
                std::copy_backward(at, most.end() - 1, most.end());
                *at = logits[i];
            }
        }
    }
    float sum = 0;
    for (const float value : most) {
        sum += std::exp(value - best);
    }
    return 1 / sum;
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

int32_t only_largest(const float * logits, int n) {
    const int32_t at         = largest(logits, n);
    const float   best       = logits[at];
    int           n_as_large = 0;
    for (int i = 0; i < n; ++i) {
        n_as_large += logits[i] < best ? 0 : 1; // the condition has this form so that NaN counts
    }
    return n_as_large == 1 ? at : -1;
}

int32_t greedy_choice(const float * logits, int n, float p_min) {
    const int32_t best = largest(logits, n);
    return p_min > 0 && confidence(logits, n, logits[best]) < p_min ? -1 : best;
}

} // namespace spac
