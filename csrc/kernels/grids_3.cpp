// Kernels of iq3_xxs and iq3_s: grids of four weights.
#include "kernels/grids.h"

#ifdef SPAC_LANES_ONE

namespace spac::kernels {
namespace {

template <class V> struct IQ3XXS : Grid<V> {
    using Weights = block_iq3_xxs;
    using typename Grid<V>::Part;
    using typename Grid<V>::Sum;
    struct Head {
        uint32_t      signs[V::rows][8];
        typename V::I scales;
        typename V::F d;
    };

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

const Kernel iq3_xxs = kernel<IQ3XXS>();
const Kernel iq3_s   = kernel<IQ3S>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
