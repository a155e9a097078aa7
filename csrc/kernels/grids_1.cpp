// Kernels of iq1_s and iq1_m. Their grids have eight weights of -1, 0 and 1, to which an eighth is added or from which
// it is subtracted.
#include "kernels/grids.h"

#ifdef SPAC_LANES_ONE

#include <cmath>

namespace spac::kernels {
namespace {

// Makes a part. This grid has signs of its own. Where a weight is zero, the input's sign does not matter.
template <class V, class Of> typename Grid<V>::Part signed_part(Of grid, typename V::I scale) {
    const auto weights = V::eights(grid);
    return {sizes8(weights), V::signs_of(weights), scale};
}

template <class V> struct IQ1S : Grid<V> {
    using Weights = block_iq1_s;
    using typename Grid<V>::Part;
    struct Head {
        uint16_t      indices[2][V::rows][16];
        typename V::I scales, eighths; // eighths: one for 16 weights each, as bsums
        typename V::F d;
    };
    struct Sum {
        typename V::F all = V::no_floats(), eighths = V::no_floats(); // eighths: the same in all lanes of a row
    };

    template <class X> static Head head(X x) {
        Head w;
        // 32 weights have 16 bits: four times three of the indices, three of a scale, and the eighths' sign.
        const auto bits   = V::twice([&](int r) { return load16(x(r).qh); });
        const auto left   = V::same16(_mm_setr_epi16(256, 32, 4, 0, 256, 32, 4, 0));
        const auto fourth = V::same16(_mm_setr_epi16(0, 0, 0, 0x700, 0, 0, 0, 0x700));
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const auto low  = V::widen_u8([&](int r) { return load16(x(r).qs + 16 * i); });
            const auto own  = shuffle8(bits, V::same(each_four_times(4 * i)));
            const auto high = either(both(mul16(own, left), V::words(0x700)), both(right16<1>(own), fourth));
            store<V>(w.indices[i], either(low, high));
        }
        w.scales         = either(both(right16<11>(bits), V::words(14)), V::words(1));
        const auto pairs = shuffle8(w.scales, V::same(each_twice()));
        const auto minus = negative16(shuffle8(bits, V::same(each_twice())));
        w.eighths        = sub16(exclusive(pairs, minus), minus);
        w.d              = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X, const Head & w, int j) {
        return signed_part<V>([&](int r, int i) { return iq1s_grid[w.indices[j / 4][r][j % 4 * 4 + i]]; },
                              scale_of_32<V>(w.scales, 2 * j));
    }

    static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        auto eighths = pairs16(w.eighths, V::same(load32(y.bsums)));
        eighths      = add32(eighths, quarters<0x4e>(eighths));
        eighths      = add32(eighths, shuffle32<0x4e>(eighths));
        eighths      = add32(eighths, shuffle32<0xb1>(eighths));
        const auto d = mul(V::same(y.d), w.d);
        sum.all      = mul_add(d, to_float(s), sum.all);
        sum.eighths  = mul_add(d, to_float(eighths), sum.eighths);
    }

    static float total(const Sum & sum, int r) {
        const float eighths = _mm256_cvtss_f32(V::row(sum.eighths, r));
        return std::fmaf(IQ1S_DELTA, eighths, sum8(V::row(sum.all, r)));
    }

  private:
    // Return shuffles that repeat 16-bit numbers: four of them from `first` on four times each, or all eight twice
    // each.
    static __m256i each_four_times(int first) {
        const auto of = [&](int i) { return 0x0100010001000100 + 0x0202020202020202 * (first + i); };
        return _mm256_setr_epi64x(of(0), of(1), of(2), of(3));
    }
    static __m256i each_twice() {
        const auto of = [](int i) { return 0x01000100 + 0x02020202 * i; };
        return _mm256_setr_epi32(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7));
    }
};

template <class V> struct IQ1M : Grid<V> {
    using Weights = block_iq1_m;
    using typename Grid<V>::Part;
    struct Head {
        uint16_t      indices[2][V::rows][16];
        typename V::I scales, eighths[8]; // eighths: scales, negative where an eighth is subtracted
        typename V::F d;
    };
    struct Sum {
        typename V::F all = V::no_floats(), eighths = V::no_floats();
    };

    template <class X> static Head head(X x) {
        Head w;
        // Eight weights have four bits: three of an index, and the eighths' sign.
        const auto bits = V::twice([&](int r) { return load16(x(r).qh); });
        const auto left = V::same16(_mm_setr_epi16(256, 16, 256, 16, 256, 16, 256, 16));
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const auto low  = V::widen_u8([&](int r) { return load16(x(r).qs + 16 * i); });
            const auto high = both(mul16(shuffle8(bits, V::same(each_twice(8 * i))), left), V::words(0x700));
            store<V>(w.indices[i], either(low, high));
        }
        w.scales           = V::twice([&](int r) { return scales(load<uint64_t>(x(r).scales)); });
        const auto to_sign = V::same16(_mm_setr_epi16(0x1000, 0x1000, 0x1000, 0x1000, 0x100, 0x100, 0x100, 0x100));
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const auto minus = negative16(mul16(scales_of_16<V>(bits, 2 * j), to_sign));
            w.eighths[j]     = sub16(exclusive(scale(w, j), minus), minus);
        }
        w.d = V::floats([&](int r) { return from_half(d_bits(load<uint64_t>(x(r).scales))); });
        return w;
    }

    template <class X> static Part part(X, const Head & w, int j) {
        return signed_part<V>([&](int r, int i) { return iq1s_grid[w.indices[j / 4][r][j % 4 * 4 + i]]; }, scale(w, j));
    }

    static void add(Sum & sum, const Head & w, typename V::I s, const block_q8_K & y) {
        auto eighths = V::no_ints();
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            eighths = dot16(eighths, w.eighths[j], pairs8(V::bytes(1), V::same(load32(y.qs + 32 * j))));
        }
        const auto d = mul(V::same(y.d), w.d);
        sum.all      = mul_add(d, to_float(s), sum.all);
        sum.eighths  = mul_add(d, to_float(eighths), sum.eighths);
    }

    static float total(const Sum & sum, int r) {
        return std::fmaf(IQ1M_DELTA, sum8(V::row(sum.eighths, r)), sum8(V::row(sum.all, r)));
    }

  private:
    // Returns the scales, the first two of each 16 bits first. Each 16 bits have four scales of three bits, and above
    // them four bits of d.
    static __m128i scales(uint64_t packed) {
        constexpr uint64_t low3 = 0x0007000700070007;
        const auto    pairs     = [&](uint64_t x) { return static_cast<long long>((x & low3) | (x >> 3 & low3) << 8); };
        const __m128i three     = _mm_set_epi64x(pairs(packed >> 6), pairs(packed));
        return _mm_or_si128(_mm_add_epi8(three, three), _mm_set1_epi8(1));
    }
    static typename V::I scale(const Head & w, int j) {
        const int first = j % 2 * 8 + j / 2 * 2;
        return scales_of_16<V>(w.scales, first);
    }
    static uint16_t d_bits(uint64_t packed) {
        return static_cast<uint16_t>((packed >> 12 & 0x000f) | (packed >> 24 & 0x00f0) | (packed >> 36 & 0x0f00) |
                                     (packed >> 48 & 0xf000));
    }
    static __m256i each_twice(int first) {
        const auto of = [&](int i) {
            return static_cast<int>(0x80008000u | 0x00010001u * static_cast<unsigned>(first + i));
        };
        return _mm256_setr_epi32(of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7));
    }
};

} // namespace

const Kernel iq1_s = kernel<IQ1S>();
const Kernel iq1_m = kernel<IQ1M>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
