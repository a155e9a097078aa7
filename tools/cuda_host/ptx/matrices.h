// Matrix operations of a warp: mma.sync, ldmatrix, movmatrix.
#pragma once

#include "numbers.h"
#include "runner.h"

namespace ptx {

// tf32: a float whose last 13 bits are ignored.
struct tf32 {
    uint32_t word;
             operator f32() const { return bits<f32>(word & 0xFFFFE000); }
};

template <typename T> double element(const uint32_t * words, int i) {
    T value;
    std::memcpy(&value, reinterpret_cast<const char *>(words) + static_cast<size_t>(i) * sizeof(T), sizeof(T));
    return static_cast<double>(value);
}

// D = A B + C of m x 8 x k. A lane has row group g and place t in it, lane = 4 g + t. Word i of A holds 4 bytes of row
// g + 8 (i mod 2) (m = 16) or g (m = 8), from place t of its k-chunk. Word i of B holds the same of column g. An
// accumulator's words belong to the rows g, then g + 8, columns 2 t and 2 t + 1. `a` has the lane's words of A, with B
// behind them.
template <typename A, typename B, typename C, int m, int k>
void multiply(Lane & lane, const uint32_t * a, const uint32_t * b, const uint32_t * c, uint32_t * d) {
    constexpr int per_word = 4 / sizeof(A), chunk = 4 * per_word, n_chunks = k / chunk, n_halves = m / 8;
    using Sum         = std::conditional_t<std::is_integral_v<C>, int64_t, double>;
    constexpr int n_a = n_chunks * n_halves, n_b = n_chunks;
    static_assert(n_a + n_b <= n_words, "a board holds A and B");
    std::memcpy(lane.words, a, n_a * sizeof(uint32_t));
    std::memcpy(lane.words + n_a, b, n_b * sizeof(uint32_t));
    const Board & board = together(lane, ~0U, Operation::mma, nothing);
    const int     g = lane.number / 4, t = lane.number % 4;
    for (int half = 0; half < n_halves; ++half) {
        for (int column = 0; column < 2; ++column) {
            const int of_c = 2 * half + column;
            Sum       sum  = static_cast<Sum>(element<C>(c, of_c));
            for (int chunk_at = 0; chunk_at < n_chunks; ++chunk_at) {
                for (int place = 0; place < 4; ++place) {
                    const uint32_t * row = &board.lane[4 * g + place][chunk_at * n_halves + half];
                    const uint32_t * col = &board.lane[4 * (2 * t + column) + place][n_a + chunk_at];
                    for (int i = 0; i < per_word; ++i) {
                        sum += static_cast<Sum>(element<A>(row, i) * element<B>(col, i));
                    }
                }
            }
            const C result = static_cast<C>(sum); // of integers, the last 32 bits
            std::memcpy(reinterpret_cast<char *>(d) + static_cast<size_t>(of_c) * sizeof(C), &result, sizeof(C));
        }
    }
}

// ldmatrix: loads n matrices of 8 x 8 halves. Lane 8 i + r gives row r of matrix i, in shared memory.
inline void load_matrices(Lane & lane, uint64_t address, int n, bool transposed, uint32_t * d) {
    std::memcpy(lane.words, &address, sizeof(address));
    const auto read = [n, transposed](Board & b, Warp & warp, uint32_t) {
        const char * rows[n_lanes];
        for (int i = 0; i < n_lanes; ++i) {
            rows[i] = warp.lanes[0].block->shared + load<uint64_t>(reinterpret_cast<const char *>(b.lane[i]));
        }
        for (int i = 0; i < n_lanes; ++i) {
            for (int matrix = 0; matrix < n; ++matrix) {
                const char **first = rows + 8 * matrix, **pair = first + i % 4 * 2;
                const int    column = i / 4 * 2;
                b.lane[i][matrix] =
                    transposed ? load<uint16_t>(pair[0] + column) | uint32_t{load<uint16_t>(pair[1] + column)} << 16
                               : load<uint32_t>(first[i / 4] + i % 4 * 4);
            }
        }
    };
    const Board & board = together(lane, ~0U, Operation::load_matrix, read);
    std::memcpy(d, board.lane[lane.number], static_cast<size_t>(n) * sizeof(uint32_t));
}

// movmatrix: transposes an 8 x 8 matrix of halves.
inline uint32_t transpose(Lane & lane, uint32_t a) {
    lane.words[0]       = a;
    const Board & board = together(lane, ~0U, Operation::move_matrix, nothing);
    const int     row = lane.number / 4, column = lane.number % 4 * 2;
    const auto    half = [&](int r, int c) { return board.lane[4 * r + c / 2][0] >> (16 * (c % 2)) & 0xFFFF; };
    return half(column, row) | half(column + 1, row) << 16;
}

} // namespace ptx
