// Shared code of the types whose weights are looked up in grids, four or eight at a time. They have 256 weights with a
// scale for every 16 or 32, and are multiplied by q8_K. A grid has magnitudes. Signs are bits, and the inputs take them
// on.
#pragma once

#include "kernels/rows.h"
#include "kernels/tile.h"

#ifdef SPAC_LANES_ONE

#define GGML_COMMON_DECL_C // declares its unions without names
#define GGML_COMMON_IMPL_C // defines its grids
#include "ggml-common.h"

#include <cstring>

namespace spac::kernels {

template <class T> T load(const void * p) {
    T x;
    std::memcpy(&x, p, sizeof(x));
    return x;
}

// Returns 16 scales of four bits as the odd numbers that they stand for. Those in lower halves of bytes come before
// those in upper halves.
inline __m128i odd_scales(uint64_t packed) {
    const __m128i bits = _mm_cvtsi64_si128(static_cast<long long>(packed)), low4 = _mm_set1_epi8(15);
    const __m128i fours = _mm_unpacklo_epi8(_mm_and_si128(bits, low4), _mm_and_si128(_mm_srli_epi16(bits, 4), low4));
    return _mm_or_si128(_mm_add_epi8(fours, fours), _mm_set1_epi8(1));
}

// Returns the upper four of each row's eight times 32 bits, as odd numbers of 16 bits, in both halves.
template <class V> typename V::I odd_scales_above(typename V::I x) {
    const auto words = low_words(right32<28>(x), right32<28>(x));
    return either(left16<1>(quarters<0x88>(words)), V::words(1));
}

// Shuffles of 128 bits: number i puts byte i into eight numbers of 16 bits.
struct Spread {
    alignas(16) uint16_t of[16][8];
    constexpr Spread() : of() {
        for (int i = 0; i < 128; i++) {
            of[i / 8][i % 8] = static_cast<uint16_t>(0x8000 | i / 8);
        }
    }
};
inline constexpr Spread spread;

// Returns two of the bytes in each 128 bits of `scales`, from `first` on, in 16 bits: the one for 16 weights, the other
// for the next 16. scale_of_32() returns one for 32 weights.
template <class V> typename V::I scales_of_16(typename V::I scales, int first) {
    return shuffle8(scales, V::same(load32(spread.of[first])));
}
template <class V> typename V::I scale_of_32(typename V::I scales, int i) {
    return shuffle8(scales, V::same16(load16(spread.of[i])));
}

// Adds the eighth bit, which makes the number of ones even, to the lower seven of each of `seven`'s bytes or 16 bits.
template <class V> typename V::I even_ones(typename V::I seven) {
    const __m128i odd  = _mm_setr_epi8(0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0);
    const auto    four = both(exclusive(seven, right16<4>(seven)), V::bytes(15));
    return either(seven, shuffle8(V::same16(odd), four));
}

// Returns 32 signs from the lower 28 of each 32 bits, which have seven for every eight weights.
template <class V> typename V::I signs_of_28(typename V::I x) {
    x = either(both(x, V::ints32(0x00003fff)), both(left32<2>(x), V::ints32(0x3fff0000)));
    x = either(both(x, V::ints32(0x007f007f)), both(left32<1>(x), V::ints32(0x7f007f00)));
    return even_ones<V>(x);
}

// Stores numbers that are then read back one by one. A compiler that knew what is stored would take them out of the
// vector, which takes longer.
template <class V, class T> void store(T & to, typename V::I x) {
    static_assert(sizeof(T) == sizeof(x));
    V::store(&to, x);
    asm("" : "+m"(to));
}

template <class Lanes> struct Grid {
    using V                    = Lanes;
    using Input                = block_q8_K;
    static constexpr int block = QK_K, parts = 8;
    struct Part {
        typename V::I     sizes;
        typename V::Signs signs;
        typename V::I     scale;
    };
    struct Sum {
        typename V::F all = V::no_floats();
    };

    static typename V::I dot(typename V::I s, const Part & w, const block_q8_K & y, int j) {
        return dot16(s, w.scale, pairs8(w.sizes, negate(V::same(load32(y.qs + 32 * j)), w.signs)));
    }

    template <class Head> static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        sum.all = mul_add(mul(V::same(y.d), w.d), to_float(s), sum.all);
    }
};

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
