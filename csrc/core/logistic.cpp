#include "core/logistic.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace spac {
namespace {

// Rounds to the nearest integer, ties to even, for |x| < 2^51. Where the compiler may not assume SSE4.1, nearbyint() is
// a function call.
double rounded(double x) {
    constexpr double shift = 3.0 * (int64_t{1} << 51);
    return (x + shift) - shift;
}

constexpr int     n_features = n_logistic_features;
constexpr double  one        = 1 << 20; // priority of an expert with probability 1
constexpr int32_t above      = 2 << 20; // addition to the priority of experts of whole layers

enum Feature { count, recent, near, far, position, rejected, popular };

double * row(const LogisticState & s, int feature) {
    return s.features + static_cast<size_t>(feature) * s.n_layer * s.n_expert;
}

// The number of features that are written. Those of absent sources of transitions come last.
int n_written(const LogisticState & s) { return n_features - n_most_sources + s.transitions.n_source; }

void check(const LogisticState & s, const LogisticStep & step) {
    int32_t most = -1;
    for (int i = 0; step.routes != nullptr && i < s.n_layer * step.n_token * step.n_used; ++i) {
        most = std::max(most, step.routes[i]);
    }
    if (most >= s.n_expert) {
        throw InputError("routes name expert " + std::to_string(most) + " of " + std::to_string(s.n_expert));
    }
}

// Return 1 or 0, from the sign's bit. A comparison would become a branch that the processor cannot predict.
int is_negative(int32_t x) { return static_cast<int>(static_cast<uint32_t>(x) >> 31); }
int is_positive(int32_t x) { return static_cast<int>((0 - static_cast<uint32_t>(x)) >> 31); }

// Returns Σ a b. Four sums, so that none waits for itself.
double product(const double * a, const double * b, int n) {
    std::array<double, 4> sums = {};
    for (int i = 0; i + 4 <= n; i += 4) {
        for (int j = 0; j < 4; ++j) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    for (int i = n / 4 * 4; i < n; ++i) {
        sums[0] += a[i] * b[i];
    }
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Sums of the error, and of the error times each feature of the last step.
class Gradient {
  public:
    void add(const LogisticState & s, const int32_t * demand, int first) {
        const double *  p      = s.probability + first;
        const uint8_t * exists = s.exists + first;
        errors_.resize(s.n_expert);
        for (int e = 0; e < s.n_expert; ++e) {
            errors_[e] = exists[e] * (p[e] - is_positive(demand[first + e]));
            n_real_ += exists[e];
        }
        for (int f = 0; f < n_written(s); ++f) {
            sums_[f] += product(errors_.data(), row(s, f) + first, s.n_expert);
        }
        sums_[n_features] += std::accumulate(errors_.begin(), errors_.end(), 0.0);
    }

    void apply(const LogisticState & s, const LogisticOptions & options) const {
        for (int f = 0; f <= n_features; ++f) {
            const double g = sums_[f] / std::max(1, n_real_);
            s.squares[f]   = std::max(options.squares_kept * s.squares[f] + g * g, options.least);
            s.weights[f] =
                std::clamp(s.weights[f] - options.rate * g / std::sqrt(s.squares[f]), -options.most, options.most);
        }
    }

  private:
    std::array<double, n_features + 1> sums_   = {};
    int                                n_real_ = 0;
    std::vector<double>                errors_; // [N] of one layer
};

// Computes the features that come from counts, layer by layer.
class Counts {
  public:
    Counts(const LogisticState & s, const LogisticOptions & options, const LogisticStep & step)
        : s_(s), step_(step), least_(options.least), old_(std::pow(options.recent, step.n_verified)),
          new_near_(1 - std::pow(options.near, step.n_verified)), new_far_(1 - std::pow(options.far, step.n_verified)) {
        for (size_t n = 0; n < shares_.size(); ++n) {
            shares_[n] = share_of(static_cast<double>(n));
        }
    }

    void move(int first) const {
        const int32_t * demand = step_.demand + first;
        double * const  share  = row(s_, count) + first;
        for (int e = 0; e < s_.n_expert; ++e) {
            const auto n = static_cast<uint32_t>(demand[e]);
            share[e]     = n < shares_.size() ? shares_[n] : share_of(demand[e]);
        }
        double * const last = row(s_, recent) + first;
        for (int e = 0; e < s_.n_expert; ++e) {
            const double left = faded(old_ * last[e]);
            last[e]           = demand[e] > 0 ? 1.0 : left;
        }
        average(row(s_, near) + first, share, new_near_);
        average(row(s_, far) + first, share, new_far_);
    }

  private:
    // Returns x, or 0 if x is very small. Denormal numbers are slow, and would never fade to 0.
    double faded(double x) const { return x < least_ ? 0.0 : x; }
    double share_of(double n) const { return std::min(1.0, std::sqrt(n / step_.n_verified)); }

    void average(double * mean, const double * share, double part) const {
        for (int e = 0; e < s_.n_expert; ++e) {
            mean[e] = faded(mean[e] + part * (share[e] - mean[e]));
        }
    }

    const LogisticState &  s_;
    const LogisticStep &   step_;
    double                 least_, old_, new_near_, new_far_;
    std::array<double, 33> shares_ = {}; // share_of() of small counts
};

// Computes the features that come from routes.
void place(const LogisticState & s, const LogisticStep & step) {
    std::fill_n(row(s, position), static_cast<size_t>(2) * s.n_layer * s.n_expert, 0.0); // `rejected` lies behind it
    const int32_t * route = step.routes;
    for (int token = 0; route != nullptr && token < step.n_token; ++token) {
        const double at = (token + 1.0) / step.n_token, is_rejected = token >= step.n_token - step.n_rejected;
        for (int il = 0; il < s.n_layer; ++il) {
            const int32_t * experts = route + (static_cast<size_t>(il) * step.n_token + token) * step.n_used;
            double * const  x       = row(s, position) + il * s.n_expert;
            double * const  y       = row(s, rejected) + il * s.n_expert;
            for (int u = 0; u < step.n_used; ++u) {
                if (experts[u] >= 0) {
                    x[experts[u]] = at;
                    y[experts[u]] = is_rejected;
                }
            }
        }
    }
}

// Computes the probabilities of a layer's experts, and their priorities.
void predict(const LogisticState & s, const LogisticStep & step, int first, int32_t * priority) {
    const double * const w = s.weights;
    double * const       p = s.probability + first;
    std::fill_n(p, s.n_expert, w[n_features]);
    for (int f = 0; f < n_written(s); ++f) {
        const double * const x = row(s, f) + first;
        for (int e = 0; e < s.n_expert; ++e) {
            p[e] += w[f] * x[e];
        }
    }
    std::transform(p, p + s.n_expert, p, [](double logit) { return std::exp(-logit); });
    const uint8_t * exists  = s.exists + first;
    const int32_t * slot_of = step.slot_of + first;
    const double *  lately  = row(s, near) + first;
    const double    part    = 1 / (1 + step.hold);
    for (int e = 0; e < s.n_expert; ++e) {
        p[e]               = exists[e] * (1 / (1 + p[e]));
        const double worth = (p[e] + step.hold * lately[e] + step.margin * (1 - is_negative(slot_of[e]))) * part;
        priority[e]        = static_cast<int32_t>(rounded(worth * one));
    }
}

// Chooses the thresholds. Every pool wants as many experts as it has slots, and all that tie at the threshold. It wants
// none of priority 0. Whole layers have slots of their own.
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
            const auto nth = values.begin() + static_cast<std::ptrdiff_t>(n_slots - 1);
            std::nth_element(values.begin(), nth, values.end(), std::greater<>());
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
    const int    n      = state.n_layer * state.n_expert;
    const bool   learns = std::any_of(state.probability, state.probability + n, [](double p) { return p > 0; });
    const Counts counts(state, options, step);
    Gradient     gradient;
    for (int first = 0; first < n; first += state.n_expert) {
        if (learns) {
            gradient.add(state, step.demand, first);
        }
        counts.move(first);
    }
    if (learns) {
        gradient.apply(state, options);
    }
    place(state, step);
    state.transitions.learn(step.demand, state.exists);
    const bool known = step.routes != nullptr || step.n_verified == 1;
    const int  last  = known ? step.n_verified - step.n_rejected - 1 : -1;
    state.transitions.mark(step.demand, step.routes, step.n_token, step.n_used, last);
    state.transitions.write(row(state, popular));
    for (int first = 0; first < n; first += state.n_expert) {
        predict(state, step, first, priority + first);
        for (int e = 0; e < state.n_expert && state.whole[first / state.n_expert] != 0; ++e) {
            priority[first + e] += state.exists[first + e] != 0 ? above : 0;
        }
    }
    choose(state, priority, threshold);
}

} // namespace spac
