#include "kernels/rows.h"

#include "kernels/lanes.h"

#ifdef SPAC_LANES_ONE

#define GGML_COMMON_DECL_C // declares its unions without names
#include "ggml-common.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace spac::kernels {
namespace {

// Returns the first element of the greatest magnitude, or 0 if all are zeros or NaNs.
float greatest(const float * x) {
    // For a number and NaN, the instructions return the second operand, which is what was there before.
    __m256 high[4] = {}, low[4] = {};
#pragma GCC unroll 32
    for (int i = 0; i < QK_K / 8; i++) {
        const __m256 v = _mm256_loadu_ps(x + 8 * i);
        high[i % 4]    = _mm256_max_ps(v, high[i % 4]);
        low[i % 4]     = _mm256_min_ps(v, low[i % 4]);
    }
    const __m256 h = _mm256_max_ps(_mm256_max_ps(high[0], high[1]), _mm256_max_ps(high[2], high[3]));
    const __m256 l = _mm256_min_ps(_mm256_min_ps(low[0], low[1]), _mm256_min_ps(low[2], low[3]));
    // One half has the highest value, the other one the lowest without its sign.
    const __m256 minus  = _mm256_sub_ps(_mm256_setzero_ps(), l);
    __m256       ends   = _mm256_max_ps(_mm256_permute2f128_ps(h, minus, 0x20), _mm256_permute2f128_ps(h, minus, 0x31));
    ends                = _mm256_max_ps(ends, _mm256_permute_ps(ends, 0x4e));
    ends                = _mm256_max_ps(ends, _mm256_permute_ps(ends, 0xb1));
    const float highest = _mm256_cvtss_f32(ends), lowest = -_mm_cvtss_f32(_mm256_extractf128_ps(ends, 1));
    if (highest != -lowest) {
        return highest > -lowest ? highest : lowest;
    }
    if (highest != 0) {
        for (int j = 0; j < QK_K; j++) {
            if (std::fabs(x[j]) == highest) {
                return x[j];
            }
        }
    }
    return 0;
}

// Rounds as ggml does, for any product, infinite ones and NaN too.
void round_any(const float * x, float scale, int8_t * q) {
    for (int j = 0; j < QK_K; j++) {
        const float shifted = scale * x[j] + 12582912.f;
        int32_t     bits;
        std::memcpy(&bits, &shifted, sizeof(bits));
        q[j] = static_cast<int8_t>(std::min(127, (bits & 0x007fffff) - 0x00400000));
    }
}

// Rounds products that are numbers, which are 127 at most. Returns false if one was not a number.
bool round_numbers(const float * x, float scale, int8_t * q) {
    const __m256  by     = _mm256_set1_ps(scale);
    const __m256i order  = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    __m256i       lowest = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = 0; i < QK_K / 32; i++) {
        const auto eight = [&](int k) {
            return _mm256_cvtps_epi32(_mm256_mul_ps(by, _mm256_loadu_ps(x + 32 * i + 8 * k)));
        };
        const __m256i packed =
            _mm256_packs_epi16(_mm256_packs_epi32(eight(0), eight(1)), _mm256_packs_epi32(eight(2), eight(3)));
        lowest = _mm256_min_epi8(lowest, packed);
        _mm256_storeu_si256(reinterpret_cast<__m256i *>(q + 32 * i), _mm256_permutevar8x32_epi32(packed, order));
    }
    // NaN and infinity become the least integer, and this becomes -128.
    return _mm256_movemask_epi8(_mm256_cmpeq_epi8(lowest, _mm256_set1_epi8(-128))) == 0;
}

// Adds up every 16 numbers.
void add_up(const int8_t * q, int16_t * sums) {
    // Sums of eight bytes, each in 64 bits. The instruction takes bytes without signs. Four vectors of sums fit into
    // one.
    const auto eights = [&](int i) {
        return _mm256_sad_epu8(_mm256_xor_si256(load32(q + 32 * i), _mm256_set1_epi8(-128)), _mm256_setzero_si256());
    };
    const auto four = [&](int i) {
        const __m256i a = _mm256_or_si256(eights(i), _mm256_slli_epi64(eights(i + 1), 16));
        const __m256i b = _mm256_or_si256(eights(i + 2), _mm256_slli_epi64(eights(i + 3), 16));
        const __m256i s = _mm256_or_si256(a, _mm256_slli_epi64(b, 32));
        const __m256i t = _mm256_add_epi16(s, _mm256_shuffle_epi32(s, 0x4e));
        return _mm_unpacklo_epi16(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
    };
    const __m256i all = _mm256_sub_epi16(_mm256_setr_m128i(four(0), four(4)), _mm256_set1_epi16(16 * 128));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(sums), all);
}

} // namespace

void quantize_q8_K(const float * x, void * y, int64_t n) {
    auto * block = static_cast<block_q8_K *>(y);
    for (const float * end = x + n; x != end; x += QK_K, block++) {
        const float most = greatest(x);
        if (most == 0) {
            block->d = 0;
            std::memset(block->qs, 0, sizeof(block->qs));
            continue;
        }
        const float scale = -127.f / most;
        if (!round_numbers(x, scale, block->qs)) {
            round_any(x, scale, block->qs);
        }
        add_up(block->qs, block->bsums);
        block->d = 1 / scale;
    }
}

} // namespace spac::kernels

#else

void spac::kernels::quantize_q8_K(const float *, void *, int64_t) {}

#endif // SPAC_LANES_ONE
