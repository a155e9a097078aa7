#include "core/logistic.h"

#include "core/error.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

namespace spac {
namespace {

// The integer nearest to x lies in the low bits of x + shift, for |x| < 2^22. std::nearbyint() and std::exp() are
// calls, and compilers turn loops of what stands here into vector instructions.
constexpr float shift = 3 << 22;

template <typename To, typename From> To bits_of(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To bits;
    std::memcpy(&bits, &x, sizeof(x));
    return bits;
}

// Returns the integer nearest to x, ties to even, for 0 <= x < 2^22.
int32_t nearest(float x) { return bits_of<int32_t>(x + shift) - bits_of<int32_t>(shift); }

// Returns 1 / (1 + 2^-x) to 7 digits, for |x| <= most_bits. 2^-x is 2^k e^r with |r| <= log(2) / 2, and e^r is its
// Padé approximant: the sum of even powers and odd ones over their difference. Beyond most_bits, it would become 1.
constexpr float most_bits = 23;

float sigmoid(float x) {
    constexpr float log_2 = 0.6931471805599453f;
    const float     k = shift - x, r = (shift - k - x) * log_2, z = r * r;
    const float     even = 12 * z + 120, odd = (z + 60) * r;
    const float     up = bits_of<float>(bits_of<uint32_t>(even + odd) + (bits_of<uint32_t>(k) << 23));
    return (even - odd) / (even - odd + up);
}

constexpr int     n_features = n_logistic_features;
constexpr float   one        = 1 << 20; // priority of an expert with probability 1
constexpr int32_t above      = 2 << 20; // addition to the priority of experts of whole layers

enum Feature { count, recent, near, far, position, rejected, popular };

float * row(const LogisticState & s, int feature) {
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

// Returns Σ a b. So many sums that none waits for itself, and that few numbers are added to each.
double product(const float * a, const float * b, int n) {
    constexpr int            n_sum = 32;
    std::array<float, n_sum> sums  = {};
    for (int i = 0; i + n_sum <= n; i += n_sum) {
        for (int j = 0; j < n_sum; ++j) {
            sums[j] += a[i + j] * b[i + j];
        }
    }
    for (int i = n / n_sum * n_sum; i < n; ++i) {
        sums[0] += a[i] * b[i];
    }
    return std::accumulate(sums.begin(), sums.end(), 0.0);
}

// Sums of the error, and of the error times each feature of the last step.
class Gradient {
  public:
    explicit Gradient(int n_expert) : errors_(n_expert), ones_(n_expert, 1.0f) {}

    void add(const LogisticState & s, const int32_t * demand, int first) {
        const int       n      = s.n_expert;
        const float *   p      = s.probability + first;
        const uint8_t * exists = s.exists + first;
        float *         errors = errors_.data();
        for (int e = 0; e < n; ++e) {
            errors[e] = p[e] - (demand[first + e] > 0 ? 1.0f : 0.0f);
        }
        for (int e = 0; e < n; ++e) { // not in the loop above: vectors of bytes and of floats differ in length
            errors[e] *= static_cast<float>(exists[e]);
        }
        n_real_ += std::accumulate(exists, exists + n, 0);
        for (int f = 0; f < n_written(s); ++f) {
            sums_[f] += product(errors, row(s, f) + first, n);
        }
        sums_[n_features] += product(errors, ones_.data(), n);
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
    std::vector<float>                 errors_, ones_; // [N] of one layer
};

// Computes the features that come from counts, layer by layer.
class Counts {
  public:
    Counts(const LogisticState & s, const LogisticOptions & options, const LogisticStep & step)
        : s_(s), step_(step), least_(static_cast<float>(options.least)), old_(left(options.recent)),
          new_near_(1 - left(options.near)), new_far_(1 - left(options.far)) {
        for (size_t n = 0; n < shares_.size(); ++n) {
            shares_[n] = share_of(static_cast<float>(n));
        }
    }

    void move(int first) const {
        const int32_t * demand = step_.demand + first;
        float * const   share  = row(s_, count) + first;
        for (int e = 0; e < s_.n_expert; ++e) {
            const auto n = static_cast<uint32_t>(demand[e]);
            share[e]     = n < shares_.size() ? shares_[n] : share_of(static_cast<float>(n));
        }
        float * const last = row(s_, recent) + first;
        for (int e = 0; e < s_.n_expert; ++e) {
            const float fades = faded(old_ * last[e]);
            last[e]           = demand[e] > 0 ? 1.0f : fades;
        }
        average(row(s_, near) + first, share, new_near_);
        average(row(s_, far) + first, share, new_far_);
    }

  private:
    // Returns the part of a feature that a step leaves, of the part that a token leaves.
    float left(double kept) const { return static_cast<float>(std::pow(kept, step_.n_verified)); }
    // Returns x, or 0 if x is very small. Denormal numbers are slow, and would never fade to 0.
    float faded(float x) const { return x < least_ ? 0.0f : x; }
    float share_of(float n) const { return std::min(1.0f, std::sqrt(n / static_cast<float>(step_.n_verified))); }

    void average(float * mean, const float * share, float part) const {
        for (int e = 0; e < s_.n_expert; ++e) {
            mean[e] = faded(mean[e] + part * (share[e] - mean[e]));
        }
    }

    const LogisticState & s_;
    const LogisticStep &  step_;
    float                 least_, old_, new_near_, new_far_;
    std::array<float, 33> shares_ = {}; // share_of() of small counts
};

// Computes the features of a layer that come from routes.
void place(const LogisticState & s, const LogisticStep & step, int first) {
    float * const x = row(s, position) + first;
    float * const y = row(s, rejected) + first;
    std::fill_n(x, s.n_expert, 0.0f);
    std::fill_n(y, s.n_expert, 0.0f);
    if (step.routes == nullptr) {
        return;
    }
    const int32_t * expert = step.routes + static_cast<size_t>(first / s.n_expert) * step.n_token * step.n_used;
    for (int token = 0; token < step.n_token; ++token) {
        const auto  at          = static_cast<float>((token + 1.0) / step.n_token);
        const float is_rejected = token >= step.n_token - step.n_rejected ? 1.0f : 0.0f;
        for (int u = 0; u < step.n_used; ++u, ++expert) {
            if (*expert >= 0) {
                x[*expert] = at;
                y[*expert] = is_rejected;
            }
        }
    }
}

// Computes the probabilities of a layer's experts, and their priorities.
void predict(const LogisticState & s, const LogisticStep & step, int first, int32_t * priority) {
    constexpr float      log2_e  = 1.4426950408889634f;
    const int            n       = s.n_expert;
    const double * const w       = s.weights;
    const uint8_t *      exists  = s.exists + first;
    const int32_t *      slot_of = step.slot_of + first;
    const float *        lately  = row(s, near) + first;
    float * const        p       = s.probability + first;
    std::fill_n(p, n, static_cast<float>(w[n_features]));
    for (int f = 0; f < n_written(s); ++f) {
        const float * const x      = row(s, f) + first;
        const auto          weight = static_cast<float>(w[f]);
        for (int e = 0; e < n; ++e) {
            p[e] += weight * x[e];
        }
    }
    for (int e = 0; e < n; ++e) { // Vectors have no bounds within larger loops.
        p[e] = std::clamp(p[e] * log2_e, -most_bits, most_bits);
    }
    for (int e = 0; e < n; ++e) {
        p[e] = sigmoid(p[e]);
    }
    for (int e = 0; e < n; ++e) {
        p[e] *= static_cast<float>(exists[e]);
    }
    const auto hold = static_cast<float>(step.hold), margin = static_cast<float>(step.margin), part = 1 / (1 + hold);
    for (int e = 0; e < n; ++e) {
        const float worth = (p[e] + hold * lately[e] + (slot_of[e] < 0 ? 0.0f : margin)) * part;
        priority[e]       = nearest(worth * one);
    }
    for (int e = 0; e < n && s.whole[first / n] != 0; ++e) {
        priority[e] += exists[e] != 0 ? above : 0;
    }
}

// Returns the n-th largest of the values that `each` visits, and 1 if there are no more than n. Values are at least 0,
// and less than 2 · above. Sorting them into bins is faster than std::nth_element() on all of them.
template <typename Each> int32_t nth_largest(const Each & each, size_t n) {
    constexpr int                               low_bits = 10;
    std::array<size_t, (2 * above >> low_bits)> bins     = {};
    const auto bin_of = [&](int32_t value) { return (static_cast<uint32_t>(value) >> low_bits) % bins.size(); };
    each([&](int32_t value) { ++bins[bin_of(value)]; });
    if (n >= std::accumulate(bins.begin(), bins.end(), size_t{0})) {
        return 1;
    }
    size_t bin = bins.size() - 1;
    for (; n > bins[bin]; --bin) {
        n -= bins[bin];
    }
    std::vector<int32_t> values;
    each([&](int32_t value) {
        if (bin_of(value) == bin) {
            values.push_back(value);
        }
    });
    const auto nth = values.begin() + static_cast<std::ptrdiff_t>(n - 1);
    std::nth_element(values.begin(), nth, values.end(), std::greater<>());
    return *nth;
}

// Chooses the thresholds. Every pool wants as many experts as it has slots, and all that tie at the threshold. It wants
// none of priority 0. Whole layers have slots of their own.
void choose(const LogisticState & s, const int32_t * priority, int32_t * threshold) {
    for (int pool = 0; pool < s.n_pool; ++pool) {
        const auto each = [&](auto && visit) {
            for (int il = 0; il < s.n_layer; ++il) {
                if (s.pool[il] == pool && s.whole[il] == 0) {
                    std::for_each_n(priority + il * s.n_expert, s.n_expert, visit);
                }
            }
        };
        const int     n_slots = s.pool_slots[pool];
        const int32_t least   = n_slots > 0 ? std::max(1, nth_largest(each, static_cast<size_t>(n_slots)))
                                            : std::numeric_limits<int32_t>::max();
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
    const int      n      = state.n_layer * state.n_expert;
    const bool     learns = std::any_of(state.probability, state.probability + n, [](float p) { return p > 0; });
    const Counts   counts(state, options, step);
    Gradient       gradient(state.n_expert);
    TransitionStep transitions(state.transitions, step, state.exists);
    for (int first = 0; first < n; first += state.n_expert) {
        if (learns) {
            gradient.add(state, step.demand, first);
        }
        counts.move(first);
        place(state, step, first);
        transitions.move(first, row(state, popular) + first);
    }
    if (learns) {
        gradient.apply(state, options);
    }
    for (int first = 0; first < n; first += state.n_expert) {
        predict(state, step, first, priority + first);
    }
    choose(state, priority, threshold);
}

} // namespace spac
