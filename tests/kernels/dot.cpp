// csrc/kernels behind a C interface, compiled by test_kernels.py for an instruction set of its choice.
#include "kernels/quantize.h"
#include "kernels/rows.h"

#include <cstring>

extern "C" {

// Names of types, separated by blanks: all kernels there are, or those that are used.
const char * kernel_names(int trusted) {
    static std::string names;
    names.clear();
    for (const std::string & name :
         trusted != 0 ? spac::kernels::trusted_kernel_names() : spac::kernels::kernel_names()) {
        names += name + " ";
    }
    return names.c_str();
}

// Elements that a row has to be a multiple of; 0 where there is no kernel.
int kernel_block(int type) { return spac::kernels::trusted_kernel(type).block; }

// Whether there is a way (1: 256 bits, 2: 512 bits) that is used.
int kernel_has(int type, int way) {
    return spac::kernels::trusted_kernel(type).dot[static_cast<size_t>(way)] != nullptr ? 1 : 0;
}

// results [n_inputs, n_weights], inputs packed.
// 0 where these inputs are left to ggml.
int kernel_dot(int type, int way, int64_t n, const char * weights, size_t stride, int64_t n_weights, const char * inputs,
               size_t input_bytes, float * results, int64_t n_inputs) {
    std::vector<const void *> input;
    std::vector<float *>      result;
    for (int64_t i = 0; i < n_inputs; i++) {
        input.push_back(inputs + static_cast<size_t>(i) * input_bytes);
        result.push_back(results + i * n_weights);
    }
    const auto dot = spac::kernels::trusted_kernel(type).dot[static_cast<size_t>(way)];
    return dot({n, weights, stride, n_weights, input.data(), result.data(), n_inputs}) ? 1 : 0;
}

int  quantization_is_trusted() { return spac::kernels::quantization_is_trusted() ? 1 : 0; }
void quantize(const float * x, void * y, int64_t n) { spac::kernels::quantize_q8_K(x, y, n); }
}
