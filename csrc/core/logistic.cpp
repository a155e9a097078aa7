#include "core/logistic.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace spac {
namespace {

constexpr int     n_features = n_logistic_features;
constexpr double  one        = 1 << 20; // priority of certainty
constexpr int32_t above      = 2 << 20; // what experts of whole layers have more

enum Feature { count, recent, near, far, position, rejected };

double * row(const LogisticState & s, int feature) {
    return s.features + static_cast<size_t>(feature) * s.n_layer * s.n_expert;
}

void check(const LogisticState & s, const LogisticStep & step) {
    for (int i = 0; step.routes != nullptr && i < s.n_layer * step.n_token * step.n_used; ++i) {
        if (step.routes[i] >= s.n_expert) {
            throw InputError("routes name expert " + std::to_string(step.routes[i]) + " of " +
                             std::to_string(s.n_expert));
        }
    }
}

void learn(const LogisticState & s, const LogisticOptions & options, const int32_t * demand) {
    const int                          n        = s.n_layer * s.n_expert;
    int                                n_real   = 0;
    std::array<double, n_features + 1> gradient = {};
    std::vector<double>                error(n);
    for (int at = 0; at < n; ++at) {
        error[at] = s.exists[at] ? s.probability[at] - (demand[at] > 0) : 0.0;
        gradient[n_features] += error[at];
        n_real += s.exists[at];
    }
    for (int f = 0; f < n_features; ++f) {
        const double * x = row(s, f);
        for (int at = 0; at < n; ++at) {
            gradient[f] += error[at] * x[at];
        }
    }
    for (int f = 0; f <= n_features; ++f) {
        const double g = gradient[f] / std::max(1, n_real);
        s.squares[f]   = std::max(options.squares_kept * s.squares[f] + g * g, options.least);
        s.weights[f] =
            std::clamp(s.weights[f] - options.rate * g / std::sqrt(s.squares[f]), -options.most, options.most);
    }
}

void observe(const LogisticState & s, const LogisticOptions & options, const LogisticStep & step) {
    const double old      = std::pow(options.recent, step.n_verified);
    const double new_near = 1 - std::pow(options.near, step.n_verified);
    const double new_far  = 1 - std::pow(options.far, step.n_verified);
    // Denormal numbers are slow, and would stay.
    const auto faded = [&](double x) { return x < options.least ? 0.0 : x; };
    for (int at = 0; at < s.n_layer * s.n_expert; ++at) {
        const double share   = std::min(1.0, std::sqrt(static_cast<double>(step.demand[at]) / step.n_verified));
        row(s, count)[at]    = share;
        row(s, recent)[at]   = step.demand[at] > 0 ? 1.0 : faded(old * row(s, recent)[at]);
        row(s, near)[at]     = faded(row(s, near)[at] + new_near * (share - row(s, near)[at]));
        row(s, far)[at]      = faded(row(s, far)[at] + new_far * (share - row(s, far)[at]));
        row(s, position)[at] = row(s, rejected)[at] = 0;
    }
    const int32_t * route = step.routes;
    for (int il = 0; route != nullptr && il < s.n_layer; ++il) {
        for (int token = 0; token < step.n_token; ++token, route += step.n_used) {
            for (int u = 0; u < step.n_used; ++u) {
                if (route[u] >= 0) {
                    const int at         = il * s.n_expert + route[u];
                    row(s, position)[at] = (token + 1.0) / step.n_token;
                    row(s, rejected)[at] = token >= step.n_token - step.n_rejected;
                }
            }
        }
    }
}

void predict(const LogisticState & s) {
    for (int at = 0; at < s.n_layer * s.n_expert; ++at) {
        double logit = s.weights[n_features];
        for (int f = 0; f < n_features; ++f) {
            logit += s.weights[f] * row(s, f)[at];
        }
        s.probability[at] = s.exists[at] ? 1 / (1 + std::exp(-logit)) : 0.0;
    }
}

// Every pool wants as many as it has slots, none of priority 0, and all that tie at the threshold; whole layers have
// slots of their own.
void choose(const LogisticState & s, const int32_t * priority, int32_t * threshold) {
    std::vector<int32_t> values;
    for (int pool = 0; pool < s.n_pool; ++pool) {
        values.clear();
        for (int il = 0; il < s.n_layer; ++il) {
            if (s.pool[il] == pool && s.whole[il] == 0) {
                values.insert(values.end(), priority + il * s.n_expert, priority + (il + 1) * s.n_expert);
            }
        }
        const auto n_slots = static_cast<size_t>(std::max(0, s.pool_slots[pool]));
        int32_t    least   = n_slots == 0 ? std::numeric_limits<int32_t>::max() : 1;
        if (n_slots > 0 && n_slots < values.size()) {
            const auto nth = values.end() - static_cast<std::ptrdiff_t>(n_slots);
            std::nth_element(values.begin(), nth, values.end());
            least = std::max(1, *nth);
        }
        for (int il = 0; il < s.n_layer; ++il) {
            if (s.pool[il] == pool) {
                threshold[il] = s.whole[il] == 0 ? least : above;
            }
        }
    }
}

} // namespace

void logistic_step(const LogisticState & state, const LogisticOptions & options, const LogisticStep & step,
                   int32_t * priority, int32_t * threshold) {
    check(state, step);
    const int n = state.n_layer * state.n_expert;
    if (std::any_of(state.probability, state.probability + n, [](double p) { return p > 0; })) {
        learn(state, options, step.demand);
    }
    observe(state, options, step);
    predict(state);
    for (int at = 0; at < n; ++at) {
        const double worth = state.probability[at] + (step.slot_of[at] >= 0 ? options.margin : 0.0);
        priority[at]       = static_cast<int32_t>(std::nearbyint(worth * one));
        if (state.whole[at / state.n_expert] != 0 && state.exists[at] != 0) {
            priority[at] += above;
        }
    }
    choose(state, priority, threshold);
}

} // namespace spac
