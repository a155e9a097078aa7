// Shares out the rows of an operator's matrices among threads.
//
// A processor reads fast what lies in one piece. So the rows of all matrices, one matrix after another, are cut into as
// many stretches as there are threads, and a thread goes through most of its own from the beginning. The rest of all
// stretches goes in small pieces to whoever has time, because threads are not equally fast. Where cores are of two
// kinds, all of a stretch goes in small pieces.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace spac::kernels {

// Rows `begin` to `end` of one matrix.
struct Run {
    int64_t matrix, begin, end;
};

struct Thread {
    int ith, nth; // its number, and the number of threads
};

// The way in which stretches are cut.
struct Sharing {
    int64_t rest_share; // one in so many parts of a stretch is its rest
    int64_t pieces;     // of a rest
};
constexpr Sharing for_even_cores{6, 4}, for_uneven_cores{1, 8};

// Returns how this process cuts stretches. It stays as it is from the first call on, since all threads have to agree.
// set_uneven_cores() chooses it before: true if fast and slow cores compute together.
const Sharing & sharing();
void            set_uneven_cores(bool on);

// One thread's runs. `n_inputs(matrix)` returns the rows of input: a matrix with none is left out, one with more is
// more work. All threads share one counter. It counts, from `first` on, what has been taken of the rest. The bounds of
// runs are multiples of `together`, or the matrix's end.
template <class Inputs> class Shares {
  public:
    static constexpr int64_t together = 16; // kernels compute rows two at once, and ggml's activations 16

    Shares(int64_t n_matrices, int64_t n_rows, Thread thread, std::atomic<int> & counter, int first,
           const Inputs & n_inputs, const Sharing & how = sharing())
        : how_(how), n_rows_(n_rows), nth_(thread.nth), counter_(counter), first_(first), n_inputs_(n_inputs) {
        for (int64_t i = 0; i < n_matrices; i++) {
            total_ += work(i);
        }
        has_rest_ = nth_ > 1 && total_ / nth_ / how_.rest_share >= how_.pieces * least_piece;
        at_       = begin_of(thread.ith);
        end_      = own_end(thread.ith);
    }

    // Sets `run` to the next run. Returns false if all rows are taken.
    bool next(Run & run) {
        while (at_ >= end_) {
            if (!take()) {
                return false;
            }
        }
        // Work that begins here belongs to the matrix in which it lies.
        while (at_ >= matrix_begin_ + work(matrix_)) {
            matrix_begin_ += work(matrix_++);
        }
        const int64_t stop = std::min(end_, matrix_begin_ + work(matrix_));
        run                = {matrix_, row_at(at_), row_at(stop)};
        at_                = stop;
        return run.begin < run.end || next(run);
    }

  private:
    static constexpr int64_t row_work    = 3; // work of reading a row of weights, in rows of input
    static constexpr int64_t least_piece = together * (row_work + 1); // a smaller one costs more to take

    int64_t work(int64_t matrix) const {
        const int64_t n = n_inputs_(matrix);
        return n == 0 ? 0 : n_rows_ * (row_work + n);
    }
    // Returns a row of the current matrix. Consecutive places of work give consecutive rows.
    int64_t row_at(int64_t place) const {
        const int64_t of_rows = (place - matrix_begin_) * n_rows_;
        const int64_t unit    = work(matrix_) * together;
        return std::min(n_rows_, (of_rows + unit - 1) / unit * together);
    }
    int64_t begin_of(int64_t i) const { return total_ * i / nth_; }
    int64_t rest_of(int64_t i) const {
        const int64_t stretch = begin_of(i + 1) - begin_of(i);
        return has_rest_ ? stretch / how_.rest_share : 0;
    }
    int64_t own_end(int64_t i) const { return begin_of(i + 1) - rest_of(i); }

    // Takes a piece of some thread's rest: first the first pieces of all threads, then the second ones.
    bool take() {
        if (!has_rest_) {
            return false;
        }
        const int64_t n = counter_.fetch_add(1, std::memory_order_relaxed) - first_;
        if (n >= how_.pieces * nth_) {
            return false;
        }
        const int64_t i = n % nth_, k = n / nth_, rest = rest_of(i);
        at_  = own_end(i) + rest * k / how_.pieces;
        end_ = own_end(i) + rest * (k + 1) / how_.pieces;
        if (at_ < matrix_begin_) {
            matrix_ = matrix_begin_ = 0;
        }
        return true;
    }

    Sharing            how_;
    int64_t            n_rows_, nth_;
    std::atomic<int> & counter_;
    int                first_;
    Inputs             n_inputs_;
    bool               has_rest_ = false;
    int64_t            total_ = 0, at_ = 0, end_ = 0;
    int64_t            matrix_ = 0, matrix_begin_ = 0; // the matrix of `at_`, and where its work begins
};

} // namespace spac::kernels
