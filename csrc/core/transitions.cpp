#include "core/logistic.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace spac {
namespace {

// Returns the natural logarithm of a normal x > 0, to 6 digits. Compilers turn a loop of it into vector instructions,
// and a loop of std::log() into calls. x = 2^k m with m from √½ to √2; log m = 2 artanh((m - 1) / (m + 1)).
float logarithm(float x) {
    constexpr int32_t half_root = 0x3F3504F3; // the bits of √½
    int32_t           bits      = 0;
    std::memcpy(&bits, &x, sizeof(x));
    const int32_t k = (bits - half_root) >> 23, of_m = bits - k * (1 << 23);
    float         m = 0;
    std::memcpy(&m, &of_m, sizeof(m));
    const float s = (m - 1) / (m + 1), z = s * s;
    const float sum = ((z * (1.0f / 7) + 1.0f / 5) * z + 1.0f / 3) * z + 1.0f;
    return static_cast<float>(k) * 0.693147180559945f + 2 * s * sum;
}

} // namespace

TransitionStep::TransitionStep(const Transitions & tables, const LogisticStep & step, const uint8_t * exists)
    : t_(tables), demand_(step.demand), came_(t_.n_expert), chance_(t_.n_expert), odds_(t_.n_expert),
      mean_(t_.n_expert) {
    count(exists);
    mark(step);
}

float * TransitionStep::row(int source, int expert) const {
    return t_.table + (static_cast<size_t>(source) * t_.n_expert + expert) * t_.n_layer * t_.n_expert;
}

void TransitionStep::count(const uint8_t * exists) {
    if (*t_.steps == 0) {
        const int    n    = t_.n_layer * t_.n_expert;
        const auto   used = std::count_if(demand_, demand_ + n, [](int32_t x) { return x > 0; });
        const auto   real = std::max(std::ptrdiff_t{1}, std::count(exists, exists + n, uint8_t{1}));
        const double part = static_cast<double>(used) / static_cast<double>(real);
        std::transform(exists, exists + n, t_.popularity, [&](uint8_t x) { return x * part; });
        *t_.steps = t_.first_steps;
    }
    *t_.steps = t_.kept * *t_.steps + 1;
    for (int s = 0; s < t_.n_source; ++s) {
        for (int e = 0; e < t_.n_expert; ++e) {
            const int   i     = s * t_.n_expert + e;
            const float count = t_.seen[i] * static_cast<float>(t_.kept) + t_.marked[i];
            t_.seen[i]        = count < static_cast<float>(t_.least) ? 0.0f : count;
            if (t_.marked[i] != 0) {
                learned_.push_back({row(s, e), 1.0f / t_.seen[i]});
            }
        }
    }
}

void TransitionStep::mark(const LogisticStep & step) {
    const bool known = step.routes != nullptr || step.n_verified == 1;
    const int  token = known ? step.n_verified - step.n_rejected - 1 : -1;
    for (int s = 0; s < t_.n_source; ++s) {
        uint8_t * const marked = t_.marked + s * t_.n_expert;
        std::fill_n(marked, t_.n_expert, uint8_t{0});
        if (step.routes != nullptr && token >= 0 && token < step.n_token) {
            const int32_t * const chosen =
                step.routes + (static_cast<size_t>(t_.source[s]) * step.n_token + token) * step.n_used;
            for (int u = 0; u < step.n_used; ++u) {
                if (chosen[u] >= 0) {
                    marked[chosen[u]] = 1;
                }
            }
        } else if (step.routes == nullptr && token == 0) {
            const int32_t * const counts = demand_ + t_.source[s] * t_.n_expert;
            std::transform(counts, counts + t_.n_expert, marked, [](int32_t count) { return count > 0 ? 1 : 0; });
        }
        for (int e = 0; e < t_.n_expert; ++e) {
            if (marked[e] != 0) {
                const float seen = t_.seen[s * t_.n_expert + e];
                marked_[s].push_back({row(s, e), seen / (seen + static_cast<float>(t_.shrink))});
            }
        }
    }
}

void TransitionStep::learn(int first) {
    const int       n          = t_.n_expert;
    const int32_t * demand     = demand_ + first;
    double *        popularity = t_.popularity + first;
    float *         came       = came_.data();
    const double    part       = 1 / *t_.steps;
    for (int e = 0; e < n; ++e) {
        came[e] = demand[e] > 0 ? 1.0f : 0.0f;
    }
    for (int e = 0; e < n; ++e) {
        popularity[e] += (came[e] - popularity[e]) * part;
    }
    for (const auto & [cells, weight] : learned_) {
        float * mean = cells + first;
        for (int e = 0; e < n; ++e) {
            mean[e] += (came[e] - mean[e]) * weight;
        }
    }
}

void TransitionStep::move(int first, float * features) {
    learn(first);
    const int      n          = t_.n_expert;
    const auto     floor      = static_cast<float>(t_.floor);
    const double * popularity = t_.popularity + first;
    float * const  chance     = chance_.data();
    float * const  odds       = odds_.data();
    float * const  mean       = mean_.data();
    for (int e = 0; e < n; ++e) {
        chance[e]   = static_cast<float>(popularity[e]);
        odds[e]     = (chance[e] + floor) / (1 - chance[e] + floor);
        features[e] = logarithm(odds[e]);
    }
    for (int s = 0; s < t_.n_source; ++s) {
        features += static_cast<size_t>(t_.n_layer) * n;
        if (marked_[s].empty()) {
            std::fill_n(features, n, 0.0f);
            continue;
        }
        // The mean of the marked rows, each shrunk toward the popularity, over the popularity's odds.
        std::fill_n(mean, n, 0.0f);
        float rest = 0;
        for (const auto & [cells, weight] : marked_[s]) {
            const float * table = cells + first;
            for (int e = 0; e < n; ++e) {
                mean[e] += table[e] * weight;
            }
            rest += 1 - weight;
        }
        const float part = 1.0f / static_cast<float>(marked_[s].size());
        for (int e = 0; e < n; ++e) {
            const float q = (mean[e] + rest * chance[e]) * part;
            features[e]   = logarithm((q + floor) / ((1 - q + floor) * odds[e]));
        }
    }
}

} // namespace spac
