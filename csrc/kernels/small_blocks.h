// Shared code of types with small blocks: a block of 32 weights has a scale and no parts, and is multiplied by q8_0 or
// q8_1.
#pragma once

#include "kernels/tile.h"

#ifdef SPAC_LANES_ONE

#define GGML_COMMON_DECL_C // declares its unions without names
#include "ggml-common.h"

#include <cstring>
#include <type_traits>

namespace spac::kernels {

// Blocks of input. With a scale for every 32 numbers it is the scales that cost, so they are unpacked once for all rows
// of weights.
struct Scaled {
    using Block = block_q8_0;
    float  d;
    int8_t q[QK8_0];
};

struct Summed {
    using Block = block_q8_1;
    float  d, s;
    int8_t q[QK8_1];
};

// Instructions that add up products of bytes multiply unsigned bytes by signed ones. So weights that have a sign are
// multiplied by inputs that are 128 too large. Without dot8 they are multiplied by inputs that took over their sign,
// because pairs8 saturates.
#ifdef SPAC_LANES_DOT8
constexpr int shift = 128;
#else
constexpr int shift = 0;
#endif

// Unpacks a block. Returns bytes that are not 0 where a weight times this input would be another number than ggml's.
// This is so for -128: with its sign changed it does not fit into a byte, and ggml's instruction for signs leaves it as
// it is. Only NaN and infinity are quantized to it.
inline __m256i unpack(Scaled & to, const block_q8_0 & from) {
    const __m256i q = load32(from.qs);
    to.d            = from_half(from.d);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to.q), exclusive(q, One::bytes(shift)));
    return shift == 0 ? One::no_ints() : _mm256_cmpeq_epi8(q, One::bytes(-128));
}

inline __m256i unpack(Summed & to, const block_q8_1 & from) {
    to.d = from_half(from.d);
    to.s = from_half(from.s);
    std::memcpy(to.q, from.qs, sizeof(to.q));
    return One::no_ints();
}

template <class V> struct Signed {
    using I = typename V::I;
    I q, also; // what the 128 add, negated; without dot8 the weights' magnitudes

#ifdef SPAC_LANES_DOT8
    explicit Signed(I weights) : q(weights), also(sub32(V::no_ints(), dot8(V::no_ints(), V::bytes(shift), weights))) {}
    I times(I y) const { return dot8(also, y, q); }
#else
    explicit Signed(I weights) : q(weights), also(sizes8(weights)) {}
    I times(I y) const { return pairs16(pairs8(also, negate(y, q)), V::words(1)); }
#endif
};

template <class V> struct Unsigned {
    using I = typename V::I;
    I q;

    explicit Unsigned(I weights) : q(weights) {}
#ifdef SPAC_LANES_DOT8
    I times(I y) const { return dot8(V::no_ints(), q, y); }
#else
    I times(I y) const { return pairs16(pairs8(q, y), V::words(1)); }
#endif
};

// Returns 32 numbers of four bits each: the lower ones of 16 bytes, then the upper ones.
template <class V, class Of> typename V::I nibbles(Of of) {
    return both(right64(V::twice(of), V::same(_mm256_setr_epi64x(0, 0, 4, 4))), V::bytes(15));
}

inline uint32_t bits32(const uint8_t * p) {
    uint32_t bits;
    std::memcpy(&bits, p, sizeof(bits));
    return bits;
}

// A block with one part, which is in its head: each block has a scale of its own, so its integers are not added up over
// parts.
template <class Lanes> struct Whole {
    using V                    = Lanes;
    static constexpr int parts = 0;
    struct Part {};
    template <class X, class Head> static Part  part(X, const Head &, int) { return {}; }
    template <class Input> static typename V::I dot(typename V::I s, const Part &, const Input &, int) { return s; }
};

template <template <class> class K, class Lanes> bool unpack_and_dot(const Rows & rows) {
    using Input    = typename K<One>::Input;
    using Unpacked = std::remove_reference_t<decltype(Input().of[0])>;
    static_assert(sizeof(Input) == K<One>::block / 32 * sizeof(Unpacked));
    return multiply_unpacked<Unpacked>(rows, 32, &dot<K, Lanes>);
}

template <template <class> class K> constexpr Kernel unpacking(Dot one = &unpack_and_dot<K, One>) {
#ifdef SPAC_LANES_TWO
    return {{nullptr, one, &unpack_and_dot<K, Two>}, K<One>::block};
#else
    return {{nullptr, one, nullptr}, K<One>::block};
#endif
}

} // namespace spac::kernels

#endif // SPAC_LANES_ONE
