// Kernels of iq2_xxs, iq2_xs and iq2_s (grids of eight weights) and of iq3_xxs and iq3_s (grids of four).
#include "kernels/grids.h"

#ifdef SPAC_LANES_ONE

namespace spac::kernels {
namespace {

// The head of a block whose signs are unpacked with it.
template <class V> struct SignedHead {
    uint32_t      signs[V::rows][8];
    typename V::I scales;
    typename V::F d;
};

template <class Lanes> struct Grid2 : Grid<Lanes> {
    using V = Lanes;
    static float total(const typename Grid<V>::Sum & sum, int r) { return 0.125f * sum8(V::row(sum.all, r)); }
};

template <class V> struct IQ2XXS : Grid2<V> {
    using Weights = block_iq2_xxs;
    using typename Grid<V>::Part;
    using Head = SignedHead<V>;

    // 32 weights have four indices of a byte, then the signs and a scale in 32 bits.
    template <class X> static Head head(X x) {
        Head       w;
        const auto signs = [&](int r) {
            const __m256 a = _mm256_castsi256_ps(load32(x(r).qs)), b = _mm256_castsi256_ps(load32(x(r).qs + 16));
            return _mm256_permute4x64_epi64(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd)), 0xd8);
        };
        const auto bits = V::ints(signs);
        store<V>(w.signs, signs_of_28<V>(bits));
        w.scales = odd_scales_above<V>(bits);
        w.d      = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        const auto index = [&](int r, int i) { return reinterpret_cast<const uint8_t *>(x(r).qs + 4 * j)[i]; };
        return {V::eights([&](int r, int i) { return iq2xxs_grid[index(r, i)]; }),
                V::signs([&](int r) { return w.signs[r][j]; }), scale_of_32<V>(w.scales, 2 * j)};
    }
};

template <class V> struct IQ2XS : Grid2<V> {
    using Weights = block_iq2_xs;
    using typename Grid<V>::Part;
    using Head = SignedHead<V>;

    template <class X> static Head head(X x) {
        Head       w;
        const auto signs = [&](int i) {
            return even_ones<V>(right16<9>(V::ints([&](int r) { return load32(x(r).qs + 16 * i); })));
        };
        store<V>(w.signs, quarters<0xd8>(low_bytes(signs(0), signs(1))));
        w.scales = V::twice([&](int r) { return odd_scales(load<uint64_t>(x(r).scales)); });
        w.d      = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        return {V::eights([&](int r, int i) { return iq2xs_grid[x(r).qs[4 * j + i] & 511]; }),
                V::signs([&](int r) { return w.signs[r][j]; }), scales_of_16<V>(w.scales, 2 * j)};
    }
};

// Returns four bytes from `first` on of those in each 128 bits, four times each, in 16 bits.
template <class V> typename V::I fours_of_bytes(typename V::I bytes, int first) {
    const auto of = [&](int i) {
        return static_cast<long long>(0x8000800080008000u | 0x0001000100010001u * static_cast<unsigned>(first + i));
    };
    return shuffle8(bytes, V::same(_mm256_setr_epi64x(of(0), of(1), of(2), of(3))));
}

template <class V> struct IQ2S : Grid2<V> {
    using Weights = block_iq2_s;
    using typename Grid<V>::Part;
    struct Head {
        uint16_t      indices[2][V::rows][16];
        typename V::I scales;
        typename V::F d;
    };

    template <class X> static Head head(X x) {
        Head       w;
        const auto high2 = V::twice([&](int r) { return _mm_cvtsi64_si128(load<long long>(x(r).qh)); });
        const auto left  = V::same16(_mm_setr_epi16(256, 64, 16, 4, 256, 64, 16, 4));
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const auto low  = V::widen_u8([&](int r) { return load16(x(r).qs + 16 * i); });
            const auto high = mul16(fours_of_bytes<V>(high2, 4 * i), left);
            store<V>(w.indices[i], either(low, both(high, V::words(0x300))));
        }
        w.scales = V::twice([&](int r) { return odd_scales(load<uint64_t>(x(r).scales)); });
        w.d      = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        return {V::eights([&](int r, int i) { return iq2s_grid[w.indices[j / 4][r][j % 4 * 4 + i]]; }),
                V::signs([&](int r) { return load<uint32_t>(x(r).qs + QK_K / 8 + 4 * j); }),
                scales_of_16<V>(w.scales, 2 * j)};
    }
};

template <class V> struct IQ3XXS : Grid<V> {
    using Weights = block_iq3_xxs;
    using typename Grid<V>::Part;
    using typename Grid<V>::Sum;
    using Head = SignedHead<V>;

    template <class X> static Head head(X x) {
        Head       w;
        const auto bits = V::ints([&](int r) { return load32(x(r).qs + QK_K / 4); });
        store<V>(w.signs, signs_of_28<V>(bits));
        w.scales = odd_scales_above<V>(bits);
        w.d      = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        return {V::fours([&](int r, int i) { return iq3xxs_grid[x(r).qs[8 * j + i]]; }),
                V::signs([&](int r) { return w.signs[r][j]; }), scale_of_32<V>(w.scales, 2 * j)};
    }

    static float total(const Sum & sum, int r) { return 0.25f * sum8(V::row(sum.all, r)); }
};

template <class V> struct IQ3S : Grid<V> {
    using Weights = block_iq3_s;
    using typename Grid<V>::Part;
    using typename Grid<V>::Sum;
    struct Head {
        uint16_t      indices[4][V::rows][16];
        typename V::I scales;
        typename V::F d;
    };

    template <class X> static Head head(X x) {
        Head       w;
        const auto ninth = V::twice([&](int r) { return _mm_cvtsi64_si128(load<long long>(x(r).qh)); });
        const auto left  = V::same16(_mm_setr_epi16(256, 128, 64, 32, 16, 8, 4, 2));
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            const auto low  = V::widen_u8([&](int r) { return load16(x(r).qs + 16 * i); });
            const auto high = mul16(scales_of_16<V>(ninth, 2 * i), left);
            store<V>(w.indices[i], either(low, both(high, V::words(256))));
        }
        w.scales = V::twice([&](int r) { return odd_scales(load<uint32_t>(x(r).scales)); });
        w.d      = V::floats([&](int r) { return from_half(x(r).d); });
        return w;
    }

    template <class X> static Part part(X x, const Head & w, int j) {
        return {V::fours([&](int r, int i) { return iq3s_grid[w.indices[j / 2][r][j % 2 * 8 + i]]; }),
                V::signs([&](int r) { return load<uint32_t>(x(r).signs + 4 * j); }), scale_of_32<V>(w.scales, j)};
    }

    static float total(const Sum & sum, int r) { return sum8(V::row(sum.all, r)); }
};

} // namespace

const Kernel iq2_xxs = kernel<IQ2XXS>();
const Kernel iq2_xs  = kernel<IQ2XS>();
const Kernel iq2_s   = kernel<IQ2S>();
const Kernel iq3_xxs = kernel<IQ3XXS>();
const Kernel iq3_s   = kernel<IQ3S>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
