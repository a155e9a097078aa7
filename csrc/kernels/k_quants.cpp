// Kernels of q2_K, q3_K, q6_K and iq4_xs: 256 weights with a scale for every 32 or 16, times q8_K.
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

template <class Lanes> struct Q6K {
    using V                    = Lanes;
    using Weights              = block_q6_K;
    using Input                = block_q8_K;
    static constexpr int block = QK_K, parts = 4;
    struct Head {
        typename V::I pairs, scales; // pairs: even scales in a row's lower 128 bits, odd ones in its upper bits
        typename V::F d;
    };
    struct Part {
        typename V::I q[2], scale[2];
    };
    struct Sum {
        typename V::F all = V::no_floats();
    };

    template <class X> static Head head(X x) {
        const auto even   = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
        const auto scales = [&](int r) { return load16(x(r).scales); };
        const auto pairs  = [&](int r) { return _mm_shuffle_epi8(load16(x(r).scales), even); };
        return {V::widen_i8(pairs), V::widen_i8(scales), V::floats([&](int r) { return from_half(x(r).d); })};
    }

    // Returns weights 64 j to 64 j + 63.
    template <class X> static Part part(X x, const Head & w, int j) {
        const auto low4 = V::bytes(15), high2 = V::bytes(48);
        const auto low = [&](int i) {
            const auto bits = V::ints([&](int r) { return load32(x(r).ql + 64 * (j / 2) + 32 * i); });
            return both(j % 2 ? right16<4>(bits) : bits, low4);
        };
        const auto high = V::ints([&](int r) { return load32(x(r).qh + 32 * (j / 2)); });
        const auto a = j % 2 ? high : left16<4>(high), b = j % 2 ? right16<2>(high) : left16<2>(high);
        return {{either(low(0), both(a, high2)), either(low(1), both(b, high2))},
                {number<V>(w.pairs, 2 * j), number<V>(w.pairs, 2 * j + 1)}};
    }

    static typename V::I dot(typename V::I s, const Part & w, const block_q8_K & y, int j) {
        s = dot16(s, w.scale[0], pairs8(w.q[0], V::same(load32(y.qs + 64 * j))));
        return dot16(s, w.scale[1], pairs8(w.q[1], V::same(load32(y.qs + 64 * j + 32))));
    }

    static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        // Weights are 32 less than their bits.
        s       = sub32(s, left32<5>(pairs16(w.scales, V::same(load32(y.bsums)))));
        sum.all = mul_add(mul(V::same(y.d), w.d), to_float(s), sum.all);
    }

    static float total(const Sum & sum, int r) { return sum8(V::row(sum.all, r)); }
};

// Returns a shuffle of bytes: the 16-bit pattern `first` in the lower 128 bits of a row, `second` in the upper ones.
template <class V> typename V::I in_halves(int first, int second) {
    return V::same(
        _mm256_setr_m128i(_mm_set1_epi16(static_cast<short>(first)), _mm_set1_epi16(static_cast<short>(second))));
}

template <class Lanes> struct Q2K {
    using V                    = Lanes;
    using Weights              = block_q2_K;
    using Input                = block_q8_K;
    static constexpr int block = QK_K, parts = 4;

    struct Head {
        typename V::I scales, mins;
        typename V::F d, dmin;
    };

    struct Part {
        typename V::I q[2];
    };

    struct Sum {
        typename V::F all = V::no_floats();
    };

    template <class X> static Head head(X x) {
        const auto bytes = [&](int r) { return load16(x(r).scales); };
        const auto low4  = V::bytes(15);
        return {both(V::twice(bytes), low4), both(right16<4>(V::widen_u8(bytes)), low4),
                V::halves([&](int r) { return x(r).d; }), V::halves([&](int r) { return x(r).dmin; })};
    }

    // Returns weights 64 j to 64 j + 63, times their scales. They are at most 3 * 15, so they stay bytes, and four
    // products with an input fit into 16 bits. A product of 16 bits multiplies both of its bytes, and neither reaches
    // into the other.
    template <class X> static Part part(X x, const Head & w, int j) {
        const auto bits  = V::ints([&](int r) { return load32(x(r).qs + 32 * (j / 2)); });
        const auto low2  = V::bytes(3);
        const auto first = j % 2 ? right16<4>(bits) : bits, second = j % 2 ? right16<6>(bits) : right16<2>(bits);
        return {{mul16(both(first, low2), scale(w, 2 * j)), mul16(both(second, low2), scale(w, 2 * j + 1))}};
    }

    static typename V::I dot(typename V::I s, const Part & w, const block_q8_K & y, int j) {
        return dot8(s, w.q[0], V::same(load32(y.qs + 64 * j)), w.q[1], V::same(load32(y.qs + 64 * j + 32)));
    }

    static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        const auto mins = pairs16(w.mins, V::same(load32(y.bsums)));
        sum.all         = mul_add(mul(V::same(-y.d), w.dmin), to_float(mins), sum.all);
        sum.all         = mul_add(mul(V::same(y.d), w.d), to_float(s), sum.all);
    }

    static float total(const Sum & sum, int r) { return sum8(V::row(sum.all, r)); }

  private:
    // Returns the two scales of weights 32 i to 32 i + 31, as 16-bit numbers.
    static typename V::I scale(const Head & w, int i) {
        constexpr int zero = 0x8000;
        return shuffle8(w.scales, in_halves<V>(zero + 2 * i, zero + 2 * i + 1));
    }
};

// Shared code of q3_K and iq4_xs: signed weights, and a scale for all 32 or for either 16.
template <class Lanes> struct Signed {
    using V                    = Lanes;
    using Input                = block_q8_K;
    static constexpr int block = QK_K, parts = 8;

    struct Part {
        typename V::I     magnitude, scale;
        typename V::Signs signs;
    };

    struct Sum {
        typename V::F all = V::no_floats();
    };

    static Part part(typename V::I q, typename V::I scale) { return {magnitude8(q), scale, signs8(q)}; }

    static typename V::I dot(typename V::I s, const Part & w, const block_q8_K & y, int j) {
        return dot16(s, w.scale, pairs8(w.magnitude, negate(V::same(load32(y.qs + 32 * j)), w.signs)));
    }

    template <class Head> static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        sum.all = mul_add(mul(V::same(y.d), w.d), to_float(s), sum.all);
    }

    static float total(const Sum & sum, int r) { return sum8(V::row(sum.all, r)); }
};

// Returns the sixteen scales of q3_K, which have six bits each in 12 bytes.
__m128i scales_of_six(const uint8_t * packed) {
    uint32_t p[3];
    std::memcpy(p, packed, sizeof(p));
    const auto low4  = _mm_and_si128(_mm_setr_epi32(static_cast<int>(p[0]), static_cast<int>(p[1]),
                                                    static_cast<int>(p[0] >> 4), static_cast<int>(p[1] >> 4)),
                                     _mm_set1_epi8(15));
    const auto high2 = _mm_and_si128(_mm_srlv_epi32(_mm_set1_epi32(static_cast<int>(p[2])), _mm_setr_epi32(0, 2, 4, 6)),
                                     _mm_set1_epi8(3));
    return _mm_sub_epi8(_mm_or_si128(low4, _mm_slli_epi32(high2, 4)), _mm_set1_epi8(32));
}

template <class V> struct Q3K : Signed<V> {
    using Weights = block_q3_K;
    using typename Signed<V>::Part;

    struct Head {
        typename V::I scales[2]; // for either half of the weights, in all 128 bits
        typename V::F d;
    };

    template <class X> static Head head(X x) {
        const auto scales = V::widen_i8([&](int r) { return scales_of_six(x(r).scales); });
        return {{quarters<0x44>(scales), quarters<0xee>(scales)}, V::halves([&](int r) { return x(r).d; })};
    }

    // Returns weights 32 j to 32 j + 31. Each is two bits, less 4 where its third bit is not set.
    template <class X> static Part part(X x, const Head & w, int j) {
        const auto bits  = V::ints([&](int r) { return load32(x(r).qs + 32 * (j / 4)); });
        const auto third = V::ints([&](int r) { return load32(x(r).hmask); });
        const auto less  = without(V::bytes(4), j < 2 ? left16(third, 2 - j) : right16(third, j - 2));
        const auto q     = sub8(both(right16(bits, 2 * (j % 4)), V::bytes(3)), less);
        const int  words = 0x0100 + 0x0404 * (j % 4);
        return Signed<V>::part(q, shuffle8(w.scales[j / 4], in_halves<V>(words, words + 0x0202)));
    }
};

template <class V> struct IQ4XS : Signed<V> {
    using Weights = block_iq4_xs;
    using typename Signed<V>::Part;

    struct Head {
        typename V::I scales;
        typename V::F d;
    };

    // Returns a scale for every 32 weights. It has six bits, four in one place and two in another.
    template <class X> static typename V::I scales(X x) {
        const auto low  = right32(V::ints([&](int r) {
                                     int l;
                                     std::memcpy(&l, x(r).scales_l, sizeof(l));
                                     return _mm256_set1_epi32(l);
                                 }),
                                  V::same(_mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)));
        const auto high = right32(V::ints([&](int r) { return _mm256_set1_epi32(x(r).scales_h); }),
                                  V::same(_mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14)));
        return sub32(either(both(low, V::ints32(15)), left32<4>(both(high, V::ints32(3)))), V::ints32(32));
    }

    template <class X> static Head head(X x) {
        const auto all   = scales(x);
        const auto words = quarters<0x88>(pack32(all, all));
        return {words, V::halves([&](int r) { return x(r).d; })};
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        // The lower four bits are weights 0 to 15, the upper four are weights 16 to 31.
        const auto bits = right32(V::twice([&](int r) { return load16(x(r).qs + 16 * j); }),
                                  V::same(_mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)));
        const auto q    = shuffle8(V::same16(load16(kvalues_iq4nl)), both(bits, V::bytes(15)));
        return Signed<V>::part(q, shuffle8(w.scales, V::words(0x0100 + 0x0202 * j)));
    }
};

#ifdef SPAC_LANES_DOT8
// The same for iq4_xs, whose weights are raised above zero. What they add too much depends on the input alone.
bool one_input_iq4_xs(const Rows & it) {
    constexpr int most = 64; // blocks
    const int64_t n    = it.n / QK_K;
    if (it.n_inputs != 1 || n > most) {
        return dot<IQ4XS, One>(it);
    }
    const auto *  y     = static_cast<const block_q8_K *>(it.inputs[0]);
    const __m256i raise = One::bytes(128), none = One::no_ints();
    const __m256i values = exclusive(One::same16(load16(kvalues_iq4nl)), raise);
    __m256i       less[most * 8];
    for (int64_t i = 0; i < 8 * n; i++) {
        less[i] = sub32(none, dot8(none, raise, load32(y[i / 8].qs + 32 * (i % 8))));
    }
    for (int64_t row = 0; row < it.n_weights; row++) {
        const auto * x   = reinterpret_cast<const block_iq4_xs *>(it.weights + static_cast<size_t>(row) * it.stride);
        __m256       all = One::no_floats();
        for (int64_t b = 0; b < n; b++) {
            const __m256i scales = IQ4XS<One>::scales([&](int) -> const auto & { return x[b]; });
            __m256i       s[2]   = {none, none};
#pragma GCC unroll 8
            for (int i = 0; i < 8; i++) {
                const __m256i bits  = right64(One::same16(load16(x[b].qs + 16 * i)), _mm256_setr_epi64x(0, 0, 4, 4));
                const __m256i q     = shuffle8(values, both(bits, One::bytes(15)));
                const __m256i each  = dot8(less[8 * b + i], q, load32(y[b].qs + 32 * i));
                const __m256i scale = _mm256_permutevar8x32_epi32(scales, One::ints32(i));
                s[i % 2]            = add32(s[i % 2], _mm256_mullo_epi32(each, scale));
            }
            const __m256 d = One::same(y[b].d * from_half(x[b].d));
            all            = mul_add(d, to_float(add32(s[0], s[1])), all);
        }
        it.results[0][row] = sum8(all);
    }
    return true;
}
#else
constexpr Dot one_input_iq4_xs = &dot<IQ4XS, One>;
#endif

} // namespace

const Kernel q6_K   = kernel<Q6K>();
const Kernel q2_K   = kernel<Q2K>();
const Kernel q3_K   = kernel<Q3K>();
const Kernel iq4_xs = with_one<IQ4XS>(one_input_iq4_xs);

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
