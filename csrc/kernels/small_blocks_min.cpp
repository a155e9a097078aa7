// Kernels of q4_1 and q5_1: 32 weights with a scale and a minimum, times q8_1.
#include "kernels/kernels.h"
#include "kernels/small_blocks.h"

#ifdef SPAC_LANES_ONE

namespace spac::kernels {
namespace {

// A kernel for unsigned weights and a minimum. ggml adds up the minima's products in one lane. Here all lanes do the
// same.
template <class V, class Type> struct WithMin : Whole<V> {
    static constexpr int block = 32;
    using Weights              = typename Type::Block;
    struct Input {
        Summed of[1];
    };
    struct Head {
        Unsigned<V>   q;
        typename V::F d, min;
    };
    struct Sum {
        typename V::F all = V::no_floats(), mins = V::no_floats();
    };

    template <class X> static Head head(X x) {
        return {Unsigned<V>(Type::template weights<V>(x)), V::halves([&](int r) { return x(r).d; }),
                V::halves([&](int r) { return x(r).m; })};
    }

    static void add(Sum & sum, const Head & w, typename V::I, const Input & input) {
        const Summed & y = input.of[0];
        sum.mins         = mul_add(V::same(y.s), w.min, sum.mins);
        sum.all          = mul_add(mul(V::same(y.d), w.d), to_float(w.q.times(V::same(load32(y.q)))), sum.all);
    }

    static float total(const Sum & sum, int r) {
        return sum8(V::row(sum.all, r)) + _mm256_cvtss_f32(V::row(sum.mins, r));
    }
};

struct Q4_1 {
    using Block = block_q4_1;
    template <class V, class X> static typename V::I weights(X x) {
        return nibbles<V>([&](int r) { return load16(x(r).qs); });
    }
};

struct Q5_1 {
    using Block = block_q5_1;
    template <class V, class X> static typename V::I weights(X x) {
        const auto fifth = V::bits([&](int r) { return bits32(x(r).qh); });
        return either(nibbles<V>([&](int r) { return load16(x(r).qs); }), both(V::bytes(16), fifth));
    }
};

template <class V> using Q4_1Kernel = WithMin<V, Q4_1>;
template <class V> using Q5_1Kernel = WithMin<V, Q5_1>;

} // namespace

const Kernel q4_1 = unpacking<Q4_1Kernel>();
const Kernel q5_1 = unpacking<Q5_1Kernel>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
