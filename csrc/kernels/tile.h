// The loops that all kernels share. A kernel is a struct K<V> (V of lanes.h) with these members:
//   Weights, Input       ggml's block types, both of `block` elements
//   Head                 what there is once for a block of V::rows rows of weights: scales and the like
//   Part                 an unpacked part of its weights, with their scales; a block has `parts` of them
//   Sum                  what is added up for V::rows rows of weights and one row of input
//   head(x)              returns the Head of x(0) … x(V::rows - 1), each row's block of weights
//   part(x, head, j)     returns part j
//   dot(s, part, y, j)   returns the integers s with the products of part j added
//   add(sum, head, s, y) adds a block's integers to the sum
//   total(sum, r)        returns the product of row r
// So few values are alive at a time that they stay in registers: a part's weights, and a sum for every row of input.
#pragma once

#include "kernels/lanes.h"
#include "kernels/rows.h"

#include <algorithm>

#ifdef SPAC_LANES_ONE

namespace spac::kernels {

// A vector's rows of weights lie far apart, so each of them comes from a long stream of rows. A processor's own
// prefetching needs such streams (docs/internals/cpu.md). A stream can still be short, and it begins anew in every
// page. So two streams are fetched this many bytes ahead. A single stream gains nothing from that.
constexpr int ahead = 2048;

// Returns memory of this thread, valid until its next call. It begins with a line of the cache.
void * scratch(size_t n_bytes);

// The number of inputs that are unpacked at a time, so that they stay in a processor's cache.
constexpr int64_t at_a_time = 16;

// Returns the sum of n sums.
template <int n, class I> I total(const I * s) {
    if constexpr (n == 4) {
        return add32(add32(s[0], s[1]), add32(s[2], s[3]));
    } else if constexpr (n == 2) {
        return add32(s[0], s[1]);
    } else {
        return s[0];
    }
}

// Multiplies row `row` of weights and those `apart` from it, as many as a vector holds, by N rows of input from `input`
// on.
template <class K, int rows, int N> void tile(const Rows & it, int64_t row, int64_t apart, int64_t input) {
    using Weights = typename K::Weights;
    using Input   = typename K::Input;
    const Weights * x[rows];
    for (int r = 0; r < rows; r++) {
        x[r] = reinterpret_cast<const Weights *>(it.weights + static_cast<size_t>(row + r * apart) * it.stride);
    }
    const Input *   y[N];
    typename K::Sum sum[N] = {};
    for (int i = 0; i < N; i++) {
        y[i] = static_cast<const Input *>(it.inputs[input + i]);
    }
    const int64_t n_block = it.n / K::block;
    // Integers are exact in any order. With one sum for all parts, each operation would wait for the one before.
    constexpr int sums = K::parts == 4 && N <= 2 ? 4 / N : 1;
    for (int64_t b = 0; b < n_block; b++) {
        for (int r = 0; rows > 1 && r < rows; r++) {
            for (size_t line = 0; line < sizeof(Weights); line += 64) {
                _mm_prefetch(reinterpret_cast<const char *>(&x[r][b]) + ahead + line, _MM_HINT_T0);
            }
        }
        const auto       of   = [&](int r) -> const Weights & { return x[r][b]; };
        const auto       head = K::head(of);
        typename K::V::I s[N][sums];
#pragma GCC unroll 8
        for (int i = 0; i < N * sums; i++) {
            s[i / sums][i % sums] = K::V::no_ints();
        }
#pragma GCC unroll 8
        for (int j = 0; j < K::parts; j++) {
            const auto part = K::part(of, head, j);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) {
                s[i][j % sums] = K::dot(s[i][j % sums], part, y[i][b], j);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            K::add(sum[i], head, total<sums>(s[i]), y[i][b]);
        }
    }
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < rows; r++) {
            it.results[input + i][row + r * apart] = K::total(sum[i], r);
        }
    }
}

// Multiplies the same rows of weights by all rows of input.
template <class K, int rows> void strip(const Rows & it, int64_t row, int64_t apart) {
    int64_t i = 0;
#ifdef SPAC_LANES_TWO              // it comes with 32 registers
    if constexpr (K::parts == 0) { // for types that ggml has no tiled kernels for
        for (; i + 8 <= it.n_inputs; i += 8) {
            tile<K, rows, 8>(it, row, apart, i);
        }
    }
#endif
    for (; i + 4 <= it.n_inputs; i += 4) {
        tile<K, rows, 4>(it, row, apart, i);
    }
    switch (it.n_inputs - i) {
    case 3:
        return tile<K, rows, 3>(it, row, apart, i);
    case 2:
        return tile<K, rows, 2>(it, row, apart, i);
    case 1:
        return tile<K, rows, 1>(it, row, apart, i);
    }
}

// Multiplies all rows of weights: as many at once as `Lanes` holds, and those that are left over one by one.
template <template <class> class K, class Lanes> bool dot(const Rows & it) {
    const int64_t apart = it.n_weights / Lanes::rows;
    if constexpr (Lanes::rows > 1) {
        for (int64_t row = 0; row < apart; row++) {
            strip<K<Lanes>, Lanes::rows>(it, row, apart);
        }
    }
    for (int64_t row = Lanes::rows > 1 ? Lanes::rows * apart : 0; row < it.n_weights; row++) {
        strip<K<One>, 1>(it, row, 0);
    }
    return true;
}

// Multiplies by rows of input that unpack(to, from) has unpacked, a block of `block` elements at a time. It returns
// bytes that are not 0 where ggml has to compute the results.
template <class Unpacked> bool multiply_unpacked(const Rows & it, int64_t block, Dot multiply) {
    if (it.n_weights <= 0) {
        return true;
    }
    const int64_t n_block = it.n / block, most = std::min(it.n_inputs, at_a_time);
    auto *        unpacked = static_cast<Unpacked *>(scratch(static_cast<size_t>(most * n_block) * sizeof(Unpacked)));
    const void *  inputs[at_a_time];
    for (int64_t first = 0; first < it.n_inputs; first += most) {
        Rows part         = it;
        part.inputs       = inputs;
        part.results      = it.results + first;
        part.n_inputs     = std::min(it.n_inputs - first, most);
        __m256i not_ggmls = One::no_ints();
        for (int64_t i = 0; i < part.n_inputs; i++) {
            const auto * from = static_cast<const typename Unpacked::Block *>(it.inputs[first + i]);
            Unpacked *   to   = unpacked + i * n_block;
            inputs[i]         = to;
            for (int64_t b = 0; b < n_block; b++) {
                not_ggmls = either(not_ggmls, unpack(to[b], from[b]));
            }
        }
        if (_mm256_movemask_epi8(not_ggmls) != 0) {
            return false;
        }
        multiply(part);
    }
    return true;
}

template <template <class> class K> constexpr Kernel kernel() {
#ifdef SPAC_LANES_TWO
    return {{nullptr, &dot<K, One>, &dot<K, Two>}, K<One>::block};
#else
    return {{nullptr, &dot<K, One>, nullptr}, K<One>::block};
#endif
}

// Returns the kernels with another function for the vectors of 256 bits.
template <template <class> class K> constexpr Kernel with_one(Dot one) {
    Kernel all                                 = kernel<K>();
    all.dot[static_cast<size_t>(Variant::one)] = one;
    return all;
}

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
