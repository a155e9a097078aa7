// Vectors of one or two rows of weights. `One` has 256 bits and holds one row. `Two` has 512 bits and holds two, one in
// each half. So a kernel that is written for the lanes of one row computes two at once. Every half goes through the
// very operations that ggml's kernel does with its 256 bits, so results are equal to the bit.
#pragma once

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define SPAC_LANES_ONE
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__) &&                 \
    defined(__AVX512VNNI__)
#define SPAC_LANES_TWO
#endif

#include <immintrin.h>

#include <cstdint>

namespace spac::kernels {

inline float from_half(uint16_t h) { return _cvtsh_ss(h); }

// Returns the sum of eight floats, in ggml's order.
inline float sum8(__m256 x) {
    __m128 s = _mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x));
    s        = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

// Returns the sum of the four floats in the lower half, in ggml's order.
inline float sum4(__m256 x) {
    __m128 s = _mm256_castps256_ps128(x);
    s        = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline __m256i load32(const void * p) { return _mm256_loadu_si256(static_cast<const __m256i *>(p)); }
inline __m128i load16(const void * p) { return _mm_loadu_si128(static_cast<const __m128i *>(p)); }

struct One {
    using I                   = __m256i; // integers
    using F                   = __m256;  // floats
    static constexpr int rows = 1;

    // Load each row's own of(row): 256 bits, 128 bits widened, 128 bits twice, a number in all lanes.
    template <class Of> static I ints(Of of) { return of(0); }
    template <class Of> static I widen_u8(Of of) { return _mm256_cvtepu8_epi16(of(0)); }
    template <class Of> static I widen_i8(Of of) { return _mm256_cvtepi8_epi16(of(0)); }
    template <class Of> static I twice(Of of) { return _mm256_broadcastsi128_si256(of(0)); }
    template <class Of> static F floats(Of of) { return _mm256_set1_ps(of(0)); }
    // Puts the first float of each row's 128 bits into all lanes.
    template <class Of> static F same_in_row(Of of) { return _mm256_broadcastss_ps(of(0)); }
    // halves() puts a 16-bit float into all lanes. bits() makes a byte of each of 32 bits, 0 or 255. two_floats() puts
    // two numbers, of(row, i), each into 128 bits.
    template <class Of> static F halves(Of of) { return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<short>(of(0)))); }
    template <class Of> static I bits(Of of) {
        const __m256i own_byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
        const __m256i own_bit  = _mm256_set1_epi64x(static_cast<long long>(0x8040201008040201));
        const __m256i bytes    = _mm256_shuffle_epi8(_mm256_set1_epi32(static_cast<int>(of(0))), own_byte);
        return _mm256_cmpeq_epi8(_mm256_and_si256(bytes, own_bit), own_bit);
    }
    template <class Of> static F two_floats(Of of) {
        return _mm256_set_m128(_mm_set1_ps(of(0, 1)), _mm_set1_ps(of(0, 0)));
    }
    // Put numbers of 64 or 32 bits, of(row, i) for i from 0, in place straight from memory.
    template <class Of> static I eights(Of of) {
        const auto number = [&](int i) { return _mm256_set1_epi64x(static_cast<long long>(of(0, i))); };
        return _mm256_blend_epi32(_mm256_blend_epi32(number(0), number(1), 0x0c),
                                  _mm256_blend_epi32(number(2), number(3), 0xc0), 0xf0);
    }
    template <class Of> static I fours(Of of) {
        const auto number = [&](int i) { return _mm256_set1_epi32(static_cast<int>(of(0, i))); };
        const auto half   = [&](int i) {
            return _mm256_blend_epi32(_mm256_blend_epi32(number(i), number(i + 1), 0x22),
                                        _mm256_blend_epi32(number(i + 2), number(i + 3), 0x88), 0xcc);
        };
        return _mm256_blend_epi32(half(0), half(4), 0xf0);
    }
    // Marks of the bytes whose signs change. signs() takes them from 32 bits, signs_of() marks the bytes below zero.
    using Signs = I; // below zero where the sign changes; a zero makes a zero
    template <class Of> static Signs signs(Of of) { return _mm256_or_si256(bits(of), _mm256_set1_epi8(1)); }
    static Signs                     signs_of(I bytes) { return bytes; }
    // Give every row the same.
    static I      same(__m256i x) { return x; }
    static I      same16(__m128i x) { return _mm256_broadcastsi128_si256(x); }
    static I      bytes(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
    static I      words(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
    static I      ints32(int x) { return _mm256_set1_epi32(x); }
    static F      same(float x) { return _mm256_set1_ps(x); }
    static I      no_ints() { return _mm256_setzero_si256(); }
    static F      no_floats() { return _mm256_setzero_ps(); }
    static __m256 row(F x, int) { return x; }
    static void   store(void * p, I x) { _mm256_storeu_si256(static_cast<__m256i *>(p), x); }
};

inline __m256i           both(__m256i a, __m256i b) { return _mm256_and_si256(a, b); }
inline __m256i           either(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }
inline __m256i           exclusive(__m256i a, __m256i b) { return _mm256_xor_si256(a, b); }
inline __m256i           add32(__m256i a, __m256i b) { return _mm256_add_epi32(a, b); }
inline __m256i           sub32(__m256i a, __m256i b) { return _mm256_sub_epi32(a, b); }
inline __m256i           add16(__m256i a, __m256i b) { return _mm256_add_epi16(a, b); }
inline __m256i           sub16(__m256i a, __m256i b) { return _mm256_sub_epi16(a, b); }
inline __m256i           sub8(__m256i a, __m256i b) { return _mm256_sub_epi8(a, b); }
inline __m256i           mul16(__m256i a, __m256i b) { return _mm256_mullo_epi16(a, b); }
inline __m256i           negate(__m256i a, One::Signs where) { return _mm256_sign_epi8(a, where); }
inline __m256i           sizes8(__m256i a) { return _mm256_abs_epi8(a); }
inline __m256i           negative16(__m256i a) { return _mm256_srai_epi16(a, 15); } // sets all bits if below zero
inline __m256i           without(__m256i a, __m256i b) { return _mm256_andnot_si256(b, a); } // a's bits that b lacks
inline __m256i           right64(__m256i a, __m256i by) { return _mm256_srlv_epi64(a, by); }
inline __m256i           shuffle8(__m256i a, __m256i by) { return _mm256_shuffle_epi8(a, by); } // within 128 bits
template <int n> __m256i right32(__m256i a) { return _mm256_srli_epi32(a, n); }
template <int n> __m256i right16(__m256i a) { return _mm256_srli_epi16(a, n); }
template <int n> __m256i left16(__m256i a) { return _mm256_slli_epi16(a, n); }
template <int n> __m256i left32(__m256i a) { return _mm256_slli_epi32(a, n); }
inline __m256i           right32(__m256i a, __m256i by) { return _mm256_srlv_epi32(a, by); }
// Pack numbers that fit into half as many bits; within 128 bits, a's come before b's.
inline __m256i low_words(__m256i a, __m256i b) { return _mm256_packus_epi32(a, b); }
inline __m256i low_bytes(__m256i a, __m256i b) { return _mm256_packus_epi16(a, b); }
// Shift by a number that is known once loops are unrolled.
inline __m256i               right16(__m256i a, int n) { return _mm256_srli_epi16(a, n); }
inline __m256i               left16(__m256i a, int n) { return _mm256_slli_epi16(a, n); }
template <int order> __m256i shuffle32(__m256i a) { return _mm256_shuffle_epi32(a, order); } // within 128 bits
template <int order> __m256i quarters(__m256i a) {
    return _mm256_permute4x64_epi64(a, order);
} // within each row's 256 bits
inline __m256i pack32(__m256i a, __m256i b) { return _mm256_packs_epi32(a, b); } // within 128 bits
inline __m256i pairs8(__m256i unsigned_a, __m256i b) { return _mm256_maddubs_epi16(unsigned_a, b); }
inline __m256i pairs16(__m256i a, __m256i b) { return _mm256_madd_epi16(a, b); }
// Returns sum + a * b, with pairs of 16-bit products added up.
inline __m256i dot16(__m256i sum, __m256i a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpwssd_epi32(sum, a, b);
#elif defined(__AVXVNNI__)
    return _mm256_dpwssd_avx_epi32(sum, a, b);
#else
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
    asm("" : "+x"(sum)); // otherwise gcc adds up all products at the end, and keeps them in memory until then
    return sum;
#endif
}
#if (defined(__AVX512VNNI__) && defined(__AVX512VL__)) || defined(__AVXVNNI__)
#define SPAC_LANES_DOT8
// Returns sum + a * b, with four 8-bit products added up.
inline __m256i dot8(__m256i sum, __m256i unsigned_a, __m256i b) {
#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
    return _mm256_dpbusd_epi32(sum, unsigned_a, b);
#else
    return _mm256_dpbusd_avx_epi32(sum, unsigned_a, b);
#endif
}
#endif
// Returns sum + a * b + c * d, of unsigned and signed bytes, where four products fit into 16 bits.
inline __m256i dot8(__m256i sum, __m256i a, __m256i b, __m256i c, __m256i d) {
#ifdef SPAC_LANES_DOT8
    return dot8(dot8(sum, a, b), c, d);
#else
    return add32(sum, pairs16(add16(pairs8(a, b), pairs8(c, d)), _mm256_set1_epi16(1)));
#endif
}
// The product of signed bytes is pairs8(magnitude8(a), negate(b, signs8(a))).
inline __m256i magnitude8(__m256i a) { return _mm256_abs_epi8(a); }
inline __m256i signs8(__m256i a) { return a; }
inline __m256  to_float(__m256i a) { return _mm256_cvtepi32_ps(a); }
inline __m256  mul(__m256 a, __m256 b) { return _mm256_mul_ps(a, b); }
inline __m256  add(__m256 a, __m256 b) { return _mm256_add_ps(a, b); }
inline __m256  mul_add(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }

#ifdef SPAC_LANES_TWO

inline __m512i pair(__m256i a, __m256i b) { return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1); }

struct Two {
    using I                   = __m512i;
    using F                   = __m512;
    static constexpr int rows = 2;

    template <class Of> static I ints(Of of) { return pair(of(0), of(1)); }
    template <class Of> static I widen_u8(Of of) { return _mm512_cvtepu8_epi16(pair16(of(0), of(1))); }
    template <class Of> static I widen_i8(Of of) { return _mm512_cvtepi8_epi16(pair16(of(0), of(1))); }
    template <class Of> static I twice(Of of) {
        return pair(_mm256_broadcastsi128_si256(of(0)), _mm256_broadcastsi128_si256(of(1)));
    }
    template <class Of> static F floats(Of of) {
        return _mm512_mask_broadcastss_ps(_mm512_set1_ps(of(0)), 0xff00, _mm_set_ss(of(1)));
    }
    template <class Of> static F same_in_row(Of of) {
        return _mm512_mask_broadcastss_ps(_mm512_broadcastss_ps(of(0)), 0xff00, of(1));
    }
    template <class Of> static F halves(Of of) {
        const __m256i first = _mm256_set1_epi16(static_cast<short>(of(0)));
        return _mm512_cvtph_ps(_mm256_mask_set1_epi16(first, 0xff00, static_cast<short>(of(1))));
    }
    template <class Of> static I bits(Of of) {
        return _mm512_movm_epi8(static_cast<uint64_t>(of(1)) << 32 | static_cast<uint64_t>(of(0)));
    }
    template <class Of> static F two_floats(Of of) {
        __m512 x = _mm512_set1_ps(of(0, 0));
        x        = _mm512_mask_broadcastss_ps(x, 0x00f0, _mm_set_ss(of(0, 1)));
        x        = _mm512_mask_broadcastss_ps(x, 0x0f00, _mm_set_ss(of(1, 0)));
        return _mm512_mask_broadcastss_ps(x, 0xf000, _mm_set_ss(of(1, 1)));
    }
    template <class Of> static I eights(Of of) {
        const auto two = [&](int r, int i) {
            return _mm512_mask_broadcastq_epi64(_mm512_broadcastq_epi64(low8(of(r, i))), 0xaa, low8(of(r, i + 1)));
        };
        I x = _mm512_mask_mov_epi64(two(0, 0), 0x0c, two(0, 2));
        x   = _mm512_mask_mov_epi64(x, 0x30, two(1, 0));
        return _mm512_mask_mov_epi64(x, 0xc0, two(1, 2));
    }
    template <class Of> static I fours(Of of) {
        const auto four = [&](int r, int i) {
            I x = _mm512_mask_broadcastd_epi32(_mm512_broadcastd_epi32(low4(of(r, i))), 0x2222, low4(of(r, i + 1)));
            x   = _mm512_mask_broadcastd_epi32(x, 0x4444, low4(of(r, i + 2)));
            return _mm512_mask_broadcastd_epi32(x, 0x8888, low4(of(r, i + 3)));
        };
        I x = _mm512_mask_mov_epi32(four(0, 0), 0x00f0, four(0, 4));
        x   = _mm512_mask_mov_epi32(x, 0x0f00, four(1, 0));
        return _mm512_mask_mov_epi32(x, 0xf000, four(1, 4));
    }
    using Signs = __mmask64;
    template <class Of> static Signs signs(Of of) {
        return _mm512_kunpackd(_cvtu32_mask32(of(1)), _cvtu32_mask32(of(0)));
    }
    static Signs  signs_of(I bytes) { return _mm512_movepi8_mask(bytes); }
    static I      same(__m256i x) { return _mm512_broadcast_i64x4(x); }
    static I      same16(__m128i x) { return _mm512_broadcast_i32x4(x); }
    static I      bytes(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
    static I      words(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
    static I      ints32(int x) { return _mm512_set1_epi32(x); }
    static F      same(float x) { return _mm512_set1_ps(x); }
    static I      no_ints() { return _mm512_setzero_si512(); }
    static F      no_floats() { return _mm512_setzero_ps(); }
    static __m256 row(F x, int r) { return r == 0 ? _mm512_castps512_ps256(x) : _mm512_extractf32x8_ps(x, 1); }
    static void   store(void * p, I x) { _mm512_storeu_si512(p, x); }

  private:
    static __m128i low8(uint64_t x) { return _mm_cvtsi64_si128(static_cast<long long>(x)); }
    static __m128i low4(uint32_t x) { return _mm_cvtsi32_si128(static_cast<int>(x)); }
    static __m256i pair16(__m128i a, __m128i b) { return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1); }
};

inline __m512i both(__m512i a, __m512i b) { return _mm512_and_si512(a, b); }
inline __m512i either(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }
inline __m512i exclusive(__m512i a, __m512i b) { return _mm512_xor_si512(a, b); }
inline __m512i add32(__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }
inline __m512i sub32(__m512i a, __m512i b) { return _mm512_sub_epi32(a, b); }
inline __m512i add16(__m512i a, __m512i b) { return _mm512_add_epi16(a, b); }
inline __m512i sub16(__m512i a, __m512i b) { return _mm512_sub_epi16(a, b); }
inline __m512i sub8(__m512i a, __m512i b) { return _mm512_sub_epi8(a, b); }
inline __m512i mul16(__m512i a, __m512i b) { return _mm512_mullo_epi16(a, b); }
inline __m512i negate(__m512i a, Two::Signs where) { return _mm512_mask_sub_epi8(a, where, _mm512_setzero_si512(), a); }
inline __m512i sizes8(__m512i a) { return _mm512_abs_epi8(a); }
inline __m512i negative16(__m512i a) { return _mm512_srai_epi16(a, 15); }
inline __m512i without(__m512i a, __m512i b) { return _mm512_andnot_si512(b, a); }
inline __m512i right64(__m512i a, __m512i by) { return _mm512_srlv_epi64(a, by); }
inline __m512i shuffle8(__m512i a, __m512i by) { return _mm512_shuffle_epi8(a, by); }
template <int n> __m512i     right32(__m512i a) { return _mm512_srli_epi32(a, n); }
template <int n> __m512i     right16(__m512i a) { return _mm512_srli_epi16(a, n); }
template <int n> __m512i     left16(__m512i a) { return _mm512_slli_epi16(a, n); }
template <int n> __m512i     left32(__m512i a) { return _mm512_slli_epi32(a, n); }
inline __m512i               right32(__m512i a, __m512i by) { return _mm512_srlv_epi32(a, by); }
inline __m512i               low_words(__m512i a, __m512i b) { return _mm512_packus_epi32(a, b); }
inline __m512i               low_bytes(__m512i a, __m512i b) { return _mm512_packus_epi16(a, b); }
inline __m512i               right16(__m512i a, int n) { return _mm512_srl_epi16(a, _mm_cvtsi32_si128(n)); }
inline __m512i               left16(__m512i a, int n) { return _mm512_sll_epi16(a, _mm_cvtsi32_si128(n)); }
template <int order> __m512i shuffle32(__m512i a) {
    return _mm512_shuffle_epi32(a, static_cast<_MM_PERM_ENUM>(order));
} // within 128 bits
template <int order> __m512i quarters(__m512i a) { return _mm512_permutex_epi64(a, order); }
inline __m512i               pack32(__m512i a, __m512i b) { return _mm512_packs_epi32(a, b); }
inline __m512i               pairs8(__m512i unsigned_a, __m512i b) { return _mm512_maddubs_epi16(unsigned_a, b); }
inline __m512i               pairs16(__m512i a, __m512i b) { return _mm512_madd_epi16(a, b); }
inline __m512i               dot16(__m512i sum, __m512i a, __m512i b) { return _mm512_dpwssd_epi32(sum, a, b); }
inline __m512i dot8(__m512i sum, __m512i unsigned_a, __m512i b) { return _mm512_dpbusd_epi32(sum, unsigned_a, b); }
inline __m512i dot8(__m512i sum, __m512i a, __m512i b, __m512i c, __m512i d) {
    return _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, a, b), c, d);
}
inline __m512i   magnitude8(__m512i a) { return _mm512_abs_epi8(a); }
inline __mmask64 signs8(__m512i a) { return _mm512_movepi8_mask(a); }
inline __m512    to_float(__m512i a) { return _mm512_cvtepi32_ps(a); }
inline __m512    mul(__m512 a, __m512 b) { return _mm512_mul_ps(a, b); }
inline __m512    add(__m512 a, __m512 b) { return _mm512_add_ps(a, b); }
inline __m512    mul_add(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }

#endif // SPAC_LANES_TWO

// Returns number i of 16-bit numbers in all places.
template <class V> typename V::I number(typename V::I of, int i) { return shuffle8(of, V::words(0x0100 + 0x0202 * i)); }

} // namespace spac::kernels

#endif // AVX2
