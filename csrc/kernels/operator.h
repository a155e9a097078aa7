// The product of matrices and rows of input, of which each thread computes some rows.
#pragma once

#include "kernels/rows.h"
#include "kernels/shares.h"

#include "ggml.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace spac::kernels {

// Returns true if there is a kernel for these weights.
inline bool has_kernel(const ggml_tensor * weights) {
    const Kernel & kernel = trusted_kernel(weights->type);
    return kernel.block != 0 && weights->ne[0] % kernel.block == 0;
}

// Weights of one shape and type, the rows of input of each of its matrices, and the places of the results.
class Operator {
  public:
    explicit Operator(const ggml_tensor * weights) : weights_(weights) {}
    virtual ~Operator() = default;

    virtual int64_t      n_matrices() const                      = 0;
    virtual int64_t      n_inputs(int64_t matrix) const          = 0; // rows of input; 0: nothing to compute
    virtual const char * weights(int64_t matrix) const           = 0;
    virtual const char * input(int64_t matrix, int64_t i) const  = 0; // quantized
    virtual char *       result(int64_t matrix, int64_t i) const = 0;

    size_t  stride() const { return weights_->nb[1]; } // bytes from one row of weights to the next
    int64_t n() const { return weights_->ne[0]; }      // elements of a row
    int     type() const { return weights_->type; }

  protected:
    const ggml_tensor * weights_;
};

// Multiplies rows `begin` to `end` of one matrix by all of its rows of input.
void multiply(const Operator & it, int64_t matrix, int64_t begin, int64_t end);

// Fetches the beginning of a run's weights into the caches.
void fetch(const Operator & it, const Run & run);

constexpr int64_t last_rows = 16; // rows at a run's end, before which the next run's beginning is fetched

// Computes a run. `fetch_next` is called when little is left of it, and fetches what the thread reads next.
template <class Fetch> void compute_run(const Operator & it, const Run & run, const Fetch & fetch_next) {
    const int64_t tail = std::max(run.begin, run.end - last_rows);
    multiply(it, run.matrix, run.begin, tail);
    fetch_next();
    multiply(it, run.matrix, tail, run.end);
}

// Computes one thread's part. `finish(run)` is called behind each run.
template <class Inputs, class Finish>
void compute_shares(const Operator & it, Shares<Inputs> & shares, const Finish & finish) {
    Run  run;
    bool more = shares.next(run);
    while (more) {
        const Run now = run;
        compute_run(it, now, [&] {
            more = shares.next(run);
            if (more) {
                fetch(it, run);
            }
        });
        finish(now);
    }
}

// Quantizes a row of n elements to a type of input, as ggml does.
void quantize_row(int type, const float * x, void * y, int64_t n);

// Returns the number of rows of input from which on ggml's tiled kernels compute an expert of a type of weights. They
// add up in another order.
int64_t tiled_rows(int type);

} // namespace spac::kernels
