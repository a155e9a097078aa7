// The kernels of csrc/kernels behind a C interface. test_kernels.py compiles it for an instruction set of its choice.
#include "kernels/rows.h"
#include "kernels/shares.h"

#include <cstring>
#include <memory>
#include <random>

// spac's library hides ggml's kernels for dense matrices.
bool spac::kernels::multiply_dense(const Rows &, int) { return false; }

extern "C" {

// Returns names of types, separated by blanks: all kernels, or only those that are used.
const char * kernel_names(int trusted) {
    static std::string names;
    names.clear();
    for (const std::string & name :
         trusted != 0 ? spac::kernels::trusted_kernel_names() : spac::kernels::kernel_names()) {
        names += name + " ";
    }
    return names.c_str();
}

// Returns the number of elements that a row has to be a multiple of, or 0 where there is no kernel.
int kernel_block(int type) { return spac::kernels::trusted_kernel(type).block; }

// Returns true if there is a way (1: 256 bits, 2: 512 bits) that is used.
int kernel_has(int type, int way) {
    return spac::kernels::trusted_kernel(type).dot[static_cast<size_t>(way)] != nullptr ? 1 : 0;
}

// Writes results [n_inputs, n_weights] of packed inputs. Returns 0 where these inputs are left to ggml.
int kernel_dot(int type, int way, int64_t n, const char * weights, size_t stride, int64_t n_weights,
               const char * inputs, size_t input_bytes, float * results, int64_t n_inputs) {
    std::vector<const void *> input;
    std::vector<float *>      result;
    for (int64_t i = 0; i < n_inputs; i++) {
        input.push_back(inputs + static_cast<size_t>(i) * input_bytes);
        result.push_back(results + i * n_weights);
    }
    const auto dot = spac::kernels::trusted_kernel(type).dot[static_cast<size_t>(way)];
    return dot({n, weights, stride, n_weights, input.data(), result.data(), n_inputs}) ? 1 : 0;
}

// Counts how often each row of each matrix is in a run of some thread: times [n_matrices, n_rows]. Threads come in
// random order. Returns the number of runs, or -1 if a run is invalid.
int share(int64_t n_matrices, int64_t n_rows, const int64_t * n_inputs, int nth, unsigned seed, int uneven,
          int32_t * times) {
    std::atomic<int> counter{nth};
    const auto       inputs = [&](int64_t matrix) { return n_inputs[matrix]; };
    using Shares            = spac::kernels::Shares<decltype(inputs)>;
    const auto & how        = uneven != 0 ? spac::kernels::for_uneven_cores : spac::kernels::for_even_cores;
    std::vector<std::unique_ptr<Shares>> waiting;
    for (int i = 0; i < nth; i++) {
        waiting.push_back(
            std::make_unique<Shares>(n_matrices, n_rows, spac::kernels::Thread{i, nth}, counter, nth, inputs, how));
    }
    std::minstd_rand   random(seed);
    spac::kernels::Run run;
    int                n_runs = 0;
    while (!waiting.empty()) {
        const size_t i = random() % waiting.size();
        if (!waiting[i]->next(run)) {
            waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(i));
            continue;
        }
        if (run.matrix < 0 || run.matrix >= n_matrices || run.begin < 0 || run.begin >= run.end || run.end > n_rows) {
            return -1;
        }
        n_runs++;
        for (int64_t row = run.begin; row < run.end; row++) {
            times[run.matrix * n_rows + row]++;
        }
    }
    return n_runs;
}

int  quantization_is_trusted() { return spac::kernels::quantization_is_trusted() ? 1 : 0; }
void quantize(const float * x, void * y, int64_t n) { spac::kernels::quantize_q8_K(x, y, n); }
}
