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

size_t n_cell(const Transitions & t) { return static_cast<size_t>(t.n_layer) * t.n_expert; }

void learn_popularity(const Transitions & t, const int32_t * demand, const uint8_t * exists) {
    const size_t n = n_cell(t);
    if (*t.steps == 0) {
        double used = 0, real = 0;
        for (size_t i = 0; i < n; ++i) {
            used += demand[i] > 0;
            real += exists[i];
        }
        for (size_t i = 0; i < n; ++i) {
            t.popularity[i] = exists[i] * (used / std::max(1.0, real));
        }
        *t.steps = t.first_steps;
    }
    *t.steps = t.kept * *t.steps + 1;
    for (size_t i = 0; i < n; ++i) {
        t.popularity[i] += ((demand[i] > 0 ? 1.0 : 0.0) - t.popularity[i]) / *t.steps;
    }
}

// Writes the lift of one source, [L, N]: the mean of its marked rows, each shrunk toward the popularity, over the
// popularity's odds.
void write_lift(const Transitions & t, int source, const std::vector<float> & popularity,
                const std::vector<float> & odds, std::vector<float> & mean, double * lift) {
    const size_t n = n_cell(t), first = static_cast<size_t>(source) * t.n_expert;
    int          n_marked = 0;
    float        rest     = 0;
    std::fill(mean.begin(), mean.end(), 0.0f);
    for (size_t row = first; row < first + t.n_expert; ++row) {
        if (t.marked[row] != 0) {
            const float   share = t.seen[row] / (t.seen[row] + static_cast<float>(t.shrink));
            const float * table = t.table + row * n;
            for (size_t i = 0; i < n; ++i) {
                mean[i] += table[i] * share;
            }
            rest += 1 - share;
            ++n_marked;
        }
    }
    if (n_marked == 0) {
        std::fill_n(lift, n, 0.0);
        return;
    }
    const float part = 1.0f / static_cast<float>(n_marked), floor = static_cast<float>(t.floor);
    for (size_t i = 0; i < n; ++i) {
        const float q = (mean[i] + rest * popularity[i]) * part;
        lift[i]       = logarithm((q + floor) / ((1 - q + floor) * odds[i]));
    }
}

} // namespace

void Transitions::learn(const int32_t * demand, const uint8_t * exists) const {
    learn_popularity(*this, demand, exists);
    const size_t       n = n_cell(*this);
    std::vector<float> came(n);
    std::transform(demand, demand + n, came.begin(), [](int32_t count) { return count > 0 ? 1.0f : 0.0f; });
    for (size_t row = 0; row < static_cast<size_t>(n_source) * n_expert; ++row) {
        const float count = seen[row] * static_cast<float>(kept) + marked[row];
        seen[row]         = count < static_cast<float>(least) ? 0.0f : count;
        if (marked[row] != 0) {
            const float   part = 1.0f / seen[row];
            float * const mean = table + row * n;
            for (size_t i = 0; i < n; ++i) {
                mean[i] += (came[i] - mean[i]) * part;
            }
        }
    }
}

void Transitions::mark(const int32_t * demand, const int32_t * routes, int n_token, int n_used, int token) const {
    std::fill_n(marked, static_cast<size_t>(n_source) * n_expert, uint8_t{0});
    for (int s = 0; s < n_source; ++s) {
        uint8_t * const row = marked + static_cast<size_t>(s) * n_expert;
        if (routes != nullptr && token >= 0 && token < n_token) {
            const int32_t * const chosen = routes + (static_cast<size_t>(source[s]) * n_token + token) * n_used;
            for (int u = 0; u < n_used; ++u) {
                if (chosen[u] >= 0) {
                    row[chosen[u]] = 1;
                }
            }
        } else if (routes == nullptr && token == 0) {
            const int32_t * const counts = demand + static_cast<size_t>(source[s]) * n_expert;
            std::transform(counts, counts + n_expert, row, [](int32_t count) { return count > 0 ? 1 : 0; });
        }
    }
}

void Transitions::write(double * features) const {
    const size_t       n       = n_cell(*this);
    const auto         floor_f = static_cast<float>(floor);
    std::vector<float> chance(popularity, popularity + n), odds(n), mean(n);
    for (size_t i = 0; i < n; ++i) {
        odds[i]     = (chance[i] + floor_f) / (1 - chance[i] + floor_f);
        features[i] = logarithm(odds[i]);
    }
    for (int s = 0; s < n_source; ++s) {
        write_lift(*this, s, chance, odds, mean, features + (1 + s) * n);
    }
}

} // namespace spac
