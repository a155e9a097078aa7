// Kernels of q4_K and q5_K: 256 weights with a scale and a minimum for every 32, times q8_K.
#include "kernels/rows.h"
#include "kernels/tile.h"

#ifdef SPAC_LANES_ONE

#define GGML_COMMON_DECL_C // declares its unions without names
#define GGML_COMMON_IMPL_C // defines its tables
#include "ggml-common.h"

#include <cstddef>
#include <cstring>

namespace spac::kernels {
namespace {

// Returns the eight scales and eight minima of q4_K and q5_K as 16 bytes: scales, then minima. They have six bits each
// in the 12 bytes behind d and dmin.
template <class Block> __m128i scales_and_mins(const Block & x) {
    static_assert(offsetof(Block, scales) == 4);
    const __m128i all  = load16(&x);
    const __m128i low  = _mm_shuffle_epi8(all, _mm_setr_epi8(4, 5, 6, 7, 12, 13, 14, 15, 8, 9, 10, 11, 12, 13, 14, 15));
    const __m128i high = _mm_shuffle_epi8(all, _mm_setr_epi8(-1, -1, -1, -1, 4, 5, 6, 7, -1, -1, -1, -1, 8, 9, 10, 11));
    return _mm_or_si128(_mm_and_si128(_mm_srlv_epi32(low, _mm_setr_epi32(0, 0, 0, 4)),
                                      _mm_setr_epi32(0x3f3f3f3f, 0x0f0f0f0f, 0x3f3f3f3f, 0x0f0f0f0f)),
                        _mm_and_si128(_mm_srli_epi32(high, 2), _mm_set1_epi8(0x30)));
}

// A block of input for q4_K and q5_K. It has what depends on the input alone, so that no row of weights computes it
// anew.
struct Summed {
    using Block = block_q8_K;
    int8_t  qs[QK_K]; // first, so that no vector of it crosses a line of the cache
    __m128i sums;     // of 32 inputs each; ggml has those of 16
    float   d, minus_d;
    int64_t unused;
};
static_assert(sizeof(Summed) % 32 == 0);

__m256i unpack(Summed & to, const block_q8_K & from) {
    const __m256i sums = load32(from.bsums);
    to.sums            = _mm_hadd_epi16(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    to.d               = from.d;
    to.minus_d         = -from.d;
    std::memcpy(to.qs, from.qs, sizeof(to.qs));
    return One::no_ints();
}

template <Dot compute> bool unpack_and(const Rows & it) { return multiply_unpacked<Summed>(it, QK_K, compute); }

// Shared code of q4_K and q5_K: a scale and a minimum for every 32 weights. ggml adds up the products of q4_K's minima
// in four lanes, those of q5_K's in one.
template <class Lanes, bool in_one_lane> struct WithMins {
    using V                    = Lanes;
    using Input                = Summed;
    static constexpr int block = QK_K, parts = 4;
    struct Head {
        typename V::I scales, mins;
        typename V::F d, dmin;
    };
    struct Part {
        typename V::I q[2], scale[2];
    };
    struct Sum {
        typename V::F all = V::no_floats(), mins = V::no_floats(); // mins: the lower half of each row
    };

    template <class X> static Head head(X x) {
        const auto six  = V::widen_u8([&](int r) { return scales_and_mins(x(r)); });
        const auto d    = V::same_in_row([&](int r) { return _mm_cvtph_ps(load16(&x(r))); });
        const auto dmin = V::same_in_row([&](int r) { return _mm_movehdup_ps(_mm_cvtph_ps(load16(&x(r)))); });
        return {quarters<0x44>(six), quarters<0xee>(six), d, dmin};
    }

    static typename V::I dot(typename V::I s, const Part & w, const Summed & y, int j) {
        s = dot16(s, w.scale[0], pairs8(w.q[0], V::same(load32(y.qs + 64 * j))));
        return dot16(s, w.scale[1], pairs8(w.q[1], V::same(load32(y.qs + 64 * j + 32))));
    }

    static void add(Sum & sum, const Head & w, typename V::I s, const Summed & y) {
        auto mins = pairs16(w.mins, V::same16(y.sums));
        if (in_one_lane) {
            mins = add32(mins, shuffle32<0x4e>(mins));
            mins = add32(mins, shuffle32<0xb1>(mins));
        }
        sum.mins = mul_add(mul(V::same(y.minus_d), w.dmin), to_float(mins), sum.mins);
        sum.all  = mul_add(mul(V::same(y.d), w.d), to_float(s), sum.all);
    }

    static float total(const Sum & sum, int r) {
        const __m256 mins = V::row(sum.mins, r);
        return sum8(V::row(sum.all, r)) + (in_one_lane ? _mm256_cvtss_f32(mins) : sum4(mins));
    }
};

template <class V> struct Q4K : WithMins<V, false> {
    using Weights = block_q4_K;
    using typename WithMins<V, false>::Head;
    using typename WithMins<V, false>::Part;

    // Returns weights 32 i to 32 i + 31 of one row.
    static __m256i weights(const Weights & x, int i) {
        const __m256i bits = load32(x.qs + 32 * (i / 2));
        return both(i % 2 ? right16<4>(bits) : bits, One::bytes(15));
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        const auto bits = V::ints([&](int r) { return load32(x(r).qs + 32 * j); });
        const auto low4 = V::bytes(15);
        return {{both(bits, low4), both(right16<4>(bits), low4)},
                {number<V>(w.scales, 2 * j), number<V>(w.scales, 2 * j + 1)}};
    }
};

template <class V> struct Q5K : WithMins<V, true> {
    using Weights = block_q5_K;
    using typename WithMins<V, true>::Head;
    using typename WithMins<V, true>::Part;

    // Returns weights 32 i to 32 i + 31 of one row.
    static __m256i weights(const Weights & x, int i) {
        const __m256i bits = load32(x.qs + 32 * (i / 2)), fifth = load32(x.qh);
        return either(both(i % 2 ? right16<4>(bits) : bits, One::bytes(15)),
                      both(i < 4 ? left16(fifth, 4 - i) : right16(fifth, i - 4), One::bytes(16)));
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        const auto bits = V::ints([&](int r) { return load32(x(r).qs + 32 * j); });
        // Bit i of these is the fifth bit of weights 32 i to 32 i + 31.
        const auto fifth    = V::ints([&](int r) { return load32(x(r).qh); });
        const auto low4     = V::bytes(15);
        const auto in_place = [&](int i) {
            return both(i < 4 ? left16(fifth, 4 - i) : right16(fifth, i - 4), V::bytes(16));
        };
        return {{either(both(bits, low4), in_place(2 * j)), either(both(right16<4>(bits), low4), in_place(2 * j + 1))},
                {number<V>(w.scales, 2 * j), number<V>(w.scales, 2 * j + 1)}};
    }
};

// Multiplies rows of weights by one row of input, one after the other. A single token's kernels are bound by their
// number of vector instructions. Here are fewer than for several rows of input.
template <template <class> class K, bool in_one_lane> bool one_input(const Rows & it) {
    if (it.n_inputs != 1) {
        return dot<K, One>(it);
    }
    using Block     = typename K<One>::Weights;
    const int64_t n = it.n / QK_K;
    const auto *  y = static_cast<const Summed *>(it.inputs[0]);
    for (int64_t row = 0; row < it.n_weights; row++) {
        const auto * x    = reinterpret_cast<const Block *>(it.weights + static_cast<size_t>(row) * it.stride);
        __m256       all  = _mm256_setzero_ps();
        __m128       mins = _mm_setzero_ps();
        for (int64_t b = 0; b < n; b++) {
            const __m128i six   = scales_and_mins(x[b]);
            const __m256i both6 = _mm256_broadcastsi128_si256(six);
            __m256i       s[2]  = {_mm256_setzero_si256(), _mm256_setzero_si256()};
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                const __m256i q     = K<One>::weights(x[b], i);
                const __m256i scale = _mm256_shuffle_epi8(both6, One::words(0x8000 + i));
                s[i % 2]            = dot16(s[i % 2], scale, pairs8(q, load32(y[b].qs + 32 * i)));
            }
            __m128i m = _mm_madd_epi16(_mm_unpackhi_epi8(six, _mm_setzero_si128()), y[b].sums);
            if (in_one_lane) {
                m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0x4e));
                m = _mm_add_epi32(m, _mm_shuffle_epi32(m, 0xb1));
            }
            const __m128 ds = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(&y[b].d)));
            const __m128 d  = _mm_mul_ps(_mm_cvtph_ps(load16(&x[b])), ds); // d and dmin
            mins            = _mm_fmadd_ps(_mm_shuffle_ps(d, d, 0x55), _mm_cvtepi32_ps(m), mins);
            all             = mul_add(_mm256_broadcastss_ps(d), to_float(add32(s[0], s[1])), all);
        }
        const __m256 wide  = _mm256_castps128_ps256(mins);
        it.results[0][row] = sum8(all) + (in_one_lane ? _mm_cvtss_f32(mins) : sum4(wide));
    }
    return true;
}

template <template <class> class K, Dot one> constexpr Kernel unpacking() {
#ifdef SPAC_LANES_TWO
    return {{nullptr, &unpack_and<one>, &unpack_and<dot<K, Two>>}, QK_K};
#else
    return {{nullptr, &unpack_and<one>, nullptr}, QK_K};
#endif
}

} // namespace

const Kernel q4_K = unpacking<Q4K, one_input<Q4K, false>>();
const Kernel q5_K = unpacking<Q5K, one_input<Q5K, true>>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
