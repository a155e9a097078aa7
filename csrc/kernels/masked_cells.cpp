// Answers ggml's attention (patches/0005-cpu-share-unpacking.patch): which cells of the memory does a token attend to?
// Sequences that share a memory leave most of its cells to others. ggml converts and compares each of these, for every
// head. Here, the bits of many are compared at once.
#include "kernels/rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

extern "C" {
extern int64_t (*ggml_cpu_attended)(const void * mask, size_t stride, int64_t n_rows, int64_t begin, int64_t end);
}

namespace spac::kernels {
namespace {

constexpr uint16_t masked = 0xfc00; // minus infinity

// Returns the first cell from `begin` that is not masked, or `end`.
int64_t first_attended(const uint16_t * row, int64_t begin, int64_t end) {
    int64_t cell = begin;
#if defined(__AVX2__)
    constexpr int64_t at_once = 16;
    const __m256i     all     = _mm256_set1_epi16(static_cast<short>(masked));
    for (; cell + at_once <= end; cell += at_once) {
        const __m256i cells = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(row + cell));
        const auto    equal = static_cast<uint32_t>(_mm256_movemask_epi8(_mm256_cmpeq_epi16(cells, all)));
        if (equal != UINT32_MAX) {
            return cell + __builtin_ctz(~equal) / 2; // a cell has two bytes
        }
    }
#endif
    while (cell < end && row[cell] == masked) {
        ++cell;
    }
    return cell;
}

// Returns the first cell from `begin` that one of the rows attends to, or `end`. `stride` is in bytes. Without the
// kernels, it is `begin`, and ggml looks at every cell.
int64_t attended(const void * mask, size_t stride, int64_t n_rows, int64_t begin, int64_t end) {
    if (!enabled()) {
        return begin;
    }
    int64_t first = end;
    for (int64_t i = 0; i < n_rows && first > begin; i++) {
        const char * row = static_cast<const char *>(mask) + static_cast<size_t>(i) * stride;
        first            = first_attended(reinterpret_cast<const uint16_t *>(row), begin, first);
    }
    return first;
}

const bool registered = [] {
    ggml_cpu_attended = &attended;
    return true;
}();

} // namespace
} // namespace spac::kernels
