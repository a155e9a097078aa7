// Kernels of q8_0, q4_0, q5_0, iq4_nl and mxfp4 (32 weights with a scale) and of nvfp4 (64 weights with four scales),
// times q8_0. Kernels of q4_1 and q5_1 (32 weights with a scale and a minimum), times q8_1.
#include "kernels/small_blocks.h"
#include "kernels/rows.h"

#ifdef SPAC_LANES_ONE

#define GGML_COMMON_IMPL_C // defines its tables
#include "ggml-common.h"

#include <array>
#include <cstdint>
#include <vector>

namespace spac::kernels {
namespace {

template <class V> typename V::I values(const int8_t * table, typename V::I of) {
    return shuffle8(V::same16(load16(table)), of);
}

// mxfp4's scales, halved as ggml has them: 2^(e - 128). They are given as bits, because the first two are subnormal.
constexpr auto powers = [] {
    std::array<uint32_t, 256> bits = {0x00200000, 0x00400000};
    for (uint32_t e = 2; e < 256; e++) {
        bits[e] = (e - 1) << 23;
    }
    return bits;
}();

float power(uint8_t e) {
    float x;
    std::memcpy(&x, &powers[e], sizeof(x));
    return x;
}

// A kernel for `sums` blocks of 32 weights. Each is added to a sum of its own, as ggml does it.
template <class V, class Type> struct Blocks : Whole<V> {
    static constexpr int sums = Type::sums, block = 32 * sums;
    struct Weights {
        typename Type::Block of[sums];
    };
    struct Input {
        Scaled of[sums];
    };
    struct Head {
        Signed<V>     q[sums];
        typename V::F d[sums];
    };
    struct Sum {
        typename V::F of[sums] = {};
    };

    template <class X> static Head head(X x) {
        const auto q = [&](int i) {
            return Signed<V>(Type::template weights<V>([&](int r) -> const auto & { return x(r).of[i]; }));
        };
        const auto d = [&](int i) {
            return Type::template scale<V>([&](int r) -> const auto & { return x(r).of[i]; });
        };
        if constexpr (sums == 1) {
            return {{q(0)}, {d(0)}};
        } else {
            return {{q(0), q(1)}, {d(0), d(1)}};
        }
    }

    static void add(Sum & sum, const Head & w, typename V::I, const Input & y) {
#pragma GCC unroll 2
        for (int i = 0; i < sums; i++) {
            const auto products = w.q[i].times(V::same(load32(y.of[i].q)));
            sum.of[i]           = mul_add(mul(V::same(y.of[i].d), w.d[i]), to_float(products), sum.of[i]);
        }
    }

    static float total(const Sum & sum, int r) {
        if constexpr (sums == 1) {
            return sum8(V::row(sum.of[0], r));
        } else {
            return sum8(V::row(kernels::add(sum.of[0], sum.of[1]), r));
        }
    }
};

template <class Block> __m256i nibbles_of(const Block & x) {
    return nibbles<One>([&](int) { return load16(x.qs); });
}

struct HalfScale {
    template <class V, class X> static typename V::F scale(X x) {
        return V::halves([&](int r) { return x(r).d; });
    }
};

// Each type's weights() are the numbers, and raised() are numbers that are larger by `raise`, so that none is negative.
struct Q8_0 : HalfScale {
    using Block               = block_q8_0;
    static constexpr int sums = 1, raise = 128;
    static __m256i       raised(const Block & x) { return exclusive(load32(x.qs), One::bytes(128)); }
    template <class V, class X> static typename V::I weights(X x) {
        return V::ints([&](int r) { return load32(x(r).qs); });
    }
};

struct Q4_0 : HalfScale {
    using Block                                           = block_q4_0;
    static constexpr int                             sums = 1, raise = 8;
    static __m256i                                   raised(const Block & x) { return nibbles_of(x); }
    template <class V, class X> static typename V::I weights(X x) {
        return sub8(nibbles<V>([&](int r) { return load16(x(r).qs); }), V::bytes(8));
    }
};

struct Q5_0 : HalfScale {
    using Block               = block_q5_0;
    static constexpr int sums = 1, raise = 16;
    static __m256i       raised(const Block & x) {
#ifdef SPAC_LANES_TWO
        const __m256i low4 = nibbles_of(x);
        return _mm256_mask_add_epi8(low4, _cvtu32_mask32(bits32(x.qh)), low4, One::bytes(16));
#else
        return either(nibbles_of(x), both(One::bits([&](int) { return bits32(x.qh); }), One::bytes(16)));
#endif
    }
    template <class V, class X> static typename V::I weights(X x) {
        const auto fifth = V::bits([&](int r) { return bits32(x(r).qh); });
        return either(nibbles<V>([&](int r) { return load16(x(r).qs); }), without(V::bytes(0xf0), fifth));
    }
};

struct IQ4_NL : HalfScale {
    using Block               = block_iq4_nl;
    static constexpr int sums = 2, raise = 128;
    static __m256i       raised(const Block & x) {
              return shuffle8(exclusive(One::same16(load16(kvalues_iq4nl)), One::bytes(128)), nibbles_of(x));
    }
    template <class V, class X> static typename V::I weights(X x) {
        return values<V>(kvalues_iq4nl, nibbles<V>([&](int r) { return load16(x(r).qs); }));
    }
};

struct MXFP4 {
    using Block               = block_mxfp4;
    static constexpr int sums = 2, raise = 12;
    static __m256i       raised(const Block & x) {
              return shuffle8(_mm256_add_epi8(One::same16(load16(kvalues_fp4)), One::bytes(12)), nibbles_of(x));
    }
    template <class V, class X> static typename V::I weights(X x) {
        return values<V>(kvalues_fp4, nibbles<V>([&](int r) { return load16(x(r).qs); }));
    }
    template <class V, class X> static typename V::F scale(X x) {
        return V::floats([&](int r) { return power(x(r).e); });
    }
};

// nvfp4's scales, halved as ggml has them: four bits of exponent, three of mantissa.
constexpr auto small_floats = [] {
    std::array<float, 256> x = {};
    for (int i = 0; i < 256; i++) {
        const int exponent = i >> 3 & 15, mantissa = i & 7;
        x[i] = exponent == 0 ? mantissa / 1024.0f : (8 + mantissa) * static_cast<float>(1 << exponent) / 2048.0f;
    }
    x[0x7f] = 0; // not a number
    return x;
}();

// A kernel for 64 weights with a scale for every 16.
template <class V> struct NVFP4 : Whole<V> {
    static constexpr int block = QK_NVFP4;
    using Weights              = block_nvfp4;
    struct Input {
        Scaled of[2];
    };
    struct Head {
        Signed<V>     q[2];
        typename V::F d[2];
    };
    struct Sum {
        typename V::F all = V::no_floats();
    };

    template <class X> static Head head(X x) {
        // In 16 bytes, the lower four bits of eight bytes are eight weights, and the upper ones are the next eight.
        const auto q = [&](int i) {
            const auto bits = quarters<0x50>(V::twice([&](int r) { return load16(x(r).qs + 16 * i); }));
            return Signed<V>(
                values<V>(kvalues_fp4, both(right64(bits, V::same(_mm256_setr_epi64x(0, 4, 0, 4))), V::bytes(15))));
        };
        const auto d = [&](int i) {
            return V::two_floats([&](int r, int j) { return small_floats[x(r).d[2 * i + j]]; });
        };
        return {{q(0), q(1)}, {d(0), d(1)}};
    }

    static void add(Sum & sum, const Head & w, typename V::I, const Input & y) {
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            const auto products = w.q[i].times(V::same(load32(y.of[i].q)));
            sum.all             = mul_add(mul(V::same(y.of[i].d), w.d[i]), to_float(products), sum.all);
        }
    }

    static float total(const Sum & sum, int r) { return sum8(V::row(sum.all, r)); }
};

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

#ifdef SPAC_LANES_DOT8
// A block of input for weights that are raised by so much.
template <int raise> struct Raised {
    using Block = block_q8_0;
    float   d;
    int8_t  q[32];
    int32_t less[8]; // what raised weights add too much
};

template <int raise> __m256i unpack(Raised<raise> & to, const block_q8_0 & from) {
    const __m256i q = load32(from.qs);
    to.d            = from_half(from.d);
    One::store(to.q, q);
    One::store(to.less, sub32(One::no_ints(), dot8(One::no_ints(), One::bytes(raise), q)));
    return _mm256_cmpeq_epi8(q, One::bytes(-128)); // as for Scaled
}

// Multiplies rows of weights by one row of unpacked input. Raised weights need neither a sign nor a sum of their own,
// because what they add too much depends on the input alone. ggml adds up all blocks of a row in one or two sums, for
// which each block waits. So four rows that lie far apart are computed together.
template <class Type, class Weights> bool raised_rows(const Rows & it) {
    constexpr int sums = Type::sums, together = 4;
    const auto *  y     = static_cast<const Raised<Type::raise> *>(it.inputs[0]);
    const int64_t n     = it.n / 32;
    const int64_t apart = it.n_weights / together;
    const auto    rows  = [&](int64_t first, auto count) {
        const Weights * x[count];
        __m256          sum[count][sums];
        for (int r = 0; r < count; r++) {
            x[r] = reinterpret_cast<const Weights *>(it.weights + static_cast<size_t>(first + r * apart) * it.stride);
            for (int i = 0; i < sums; i++) {
                sum[r][i] = One::no_floats();
            }
        }
        for (int64_t b = 0; b < n / sums; b++) {
#pragma GCC unroll 2
            for (int i = 0; i < sums; i++) {
                const auto & input = y[b * sums + i];
                for (int r = 0; r < count; r++) {
                    const auto &  w        = x[r][b].of[i];
                    const __m256i products = dot8(load32(input.less), Type::raised(w), load32(input.q));
                    const __m256  d        = Type::template scale<One>([&](int) -> const auto & { return w; });
                    sum[r][i]              = mul_add(mul(One::same(input.d), d), to_float(products), sum[r][i]);
                }
            }
        }
        for (int r = 0; r < count; r++) {
            it.results[0][first + r * apart] = sum8(sums == 1 ? sum[r][0] : kernels::add(sum[r][0], sum[r][sums - 1]));
        }
    };
    for (int64_t row = 0; row < apart; row++) {
        rows(row, std::integral_constant<int, together>());
    }
    for (int64_t row = apart * together; row < it.n_weights; row++) {
        rows(row, std::integral_constant<int, 1>());
    }
    return true;
}

template <class Type, template <class> class K> bool one_input(const Rows & it) {
    return it.n_inputs != 1
               ? unpack_and_dot<K, One>(it)
               : multiply_unpacked<Raised<Type::raise>>(it, 32, &raised_rows<Type, typename K<One>::Weights>);
}
#endif

template <class V> using Q8_0Kernel   = Blocks<V, Q8_0>;
template <class V> using Q4_0Kernel   = Blocks<V, Q4_0>;
template <class V> using Q5_0Kernel   = Blocks<V, Q5_0>;
template <class V> using IQ4_NLKernel = Blocks<V, IQ4_NL>;
template <class V> using MXFP4Kernel  = Blocks<V, MXFP4>;
template <class V> using Q4_1Kernel   = WithMin<V, Q4_1>;
template <class V> using Q5_1Kernel   = WithMin<V, Q5_1>;

} // namespace

void * scratch(size_t n_bytes) {
    static thread_local std::vector<char> memory;
    constexpr size_t                      line = 64; // bytes of a line of the cache
    if (memory.size() < n_bytes + line) {
        memory.resize(n_bytes + line);
    }
    return memory.data() + (line - reinterpret_cast<uintptr_t>(memory.data()) % line) % line;
}

#ifdef SPAC_LANES_DOT8
#define ONE(type, kernel) &one_input<type, kernel>
#else
#define ONE(type, kernel) &unpack_and_dot<kernel, One>
#endif

const Kernel q8_0   = unpacking<Q8_0Kernel>(ONE(Q8_0, Q8_0Kernel));
const Kernel q4_0   = unpacking<Q4_0Kernel>(ONE(Q4_0, Q4_0Kernel));
const Kernel q5_0   = unpacking<Q5_0Kernel>(ONE(Q5_0, Q5_0Kernel));
const Kernel iq4_nl = unpacking<IQ4_NLKernel>(ONE(IQ4_NL, IQ4_NLKernel));
const Kernel mxfp4  = unpacking<MXFP4Kernel>(ONE(MXFP4, MXFP4Kernel));
const Kernel nvfp4  = unpacking<NVFP4>();
const Kernel q4_1   = unpacking<Q4_1Kernel>();
const Kernel q5_1   = unpacking<Q5_1Kernel>();

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
