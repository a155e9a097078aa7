// The loops that all kernels share. A kernel is a struct K<V> (V of lanes.h) with
//   Weights, Input   ggml's block types, both of `block` elements
//   Head             what a block of V::rows rows of weights has once: scales and the like
//   Part             a part of its weights, unpacked, with their scales; a block has `parts` of them
//   Sum              what is added up for V::rows rows of weights and one row of input
//   head(x)          of x(0) … x(V::rows - 1), each row's block of weights
//   part(x, head, j)
//   dot(s, part, y, j)       s, integers, and the products of part j
//   add(sum, head, s, y)     what a block's integers add to the sum
//   total(sum, r)            the product of row r
// So few values are alive at a time that they stay in registers: a part's weights and a sum for every row of input.
#pragma once

#include "kernels/lanes.h"
#include "kernels/rows.h"

#ifdef SPAC_LANES_ONE

namespace spac::kernels {

// Two rows at once are two streams of addresses, of which each begins where the other's last one ended: a processor's
// own prefetching makes little of that. In bytes.
constexpr int ahead = 8192;

// Rows of weights from `row`, as many as a vector holds, times N rows of input from `input`.
template <class K, int rows, int N> void tile(const Rows & it, int64_t row, int64_t input) {
    using Weights = typename K::Weights;
    using Input   = typename K::Input;
    const Weights * x[rows];
    for (int r = 0; r < rows; r++) {
        x[r] = reinterpret_cast<const Weights *>(it.weights + static_cast<size_t>(row + r) * it.stride);
    }
    const Input *   y[N];
    typename K::Sum sum[N] = {};
    for (int i = 0; i < N; i++) {
        y[i] = static_cast<const Input *>(it.inputs[input + i]);
    }
    const int64_t n_block = it.n / K::block;
    for (int64_t b = 0; b < n_block; b++) {
        for (int r = 0; r < rows; r++) {
            for (size_t line = 0; line < sizeof(Weights); line += 64) {
                _mm_prefetch(reinterpret_cast<const char *>(&x[r][b]) + ahead + line, _MM_HINT_T0);
            }
        }
        const auto       of   = [&](int r) -> const Weights & { return x[r][b]; };
        const auto       head = K::head(of);
        typename K::V::I s[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            s[i] = K::V::no_ints();
        }
#pragma GCC unroll 8
        for (int j = 0; j < K::parts; j++) {
            const auto part = K::part(of, head, j);
#pragma GCC unroll 8
            for (int i = 0; i < N; i++) {
                s[i] = K::dot(s[i], part, y[i][b], j);
            }
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) {
            K::add(sum[i], head, s[i], y[i][b]);
        }
    }
    for (int i = 0; i < N; i++) {
        for (int r = 0; r < rows; r++) {
            it.results[input + i][row + r] = K::total(sum[i], r);
        }
    }
}

// Rows of weights from `row`, as many as a vector holds, times all rows of input.
template <class K, int rows> void strip(const Rows & it, int64_t row) {
    int64_t i = 0;
#ifdef SPAC_LANES_TWO              // which comes with 32 registers
    if constexpr (K::parts == 0) { // of types that ggml has no tiled kernels for
        for (; i + 8 <= it.n_inputs; i += 8) {
            tile<K, rows, 8>(it, row, i);
        }
    }
#endif
    for (; i + 4 <= it.n_inputs; i += 4) {
        tile<K, rows, 4>(it, row, i);
    }
    switch (it.n_inputs - i) {
    case 3:
        return tile<K, rows, 3>(it, row, i);
    case 2:
        return tile<K, rows, 2>(it, row, i);
    case 1:
        return tile<K, rows, 1>(it, row, i);
    }
}

// `Lanes` says how many rows of weights at once; those that are left over are computed one by one.
template <template <class> class K, class Lanes> bool dot(const Rows & it) {
    int64_t row = 0;
    if constexpr (Lanes::rows > 1) {
        for (; row + Lanes::rows <= it.n_weights; row += Lanes::rows) {
            strip<K<Lanes>, Lanes::rows>(it, row);
        }
    }
    for (; row < it.n_weights; row++) {
        strip<K<One>, 1>(it, row);
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

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
