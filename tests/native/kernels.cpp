// Runs every kernel of csrc/kernels on rows whose memory ends with their last byte. The address sanitizer detects reads
// and writes behind it. tests/kernels checks the results.
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <cstdio>
#include <random>
#include <vector>

namespace {

std::minstd_rand random_bits(1);

std::vector<char> random_bytes(size_t n) {
    std::vector<char> bytes(n);
    for (char & byte : bytes) {
        byte = static_cast<char>(random_bits() >> 8);
    }
    return bytes;
}

void multiply(ggml_type type, int64_t n, int64_t n_weights, int64_t n_inputs) {
    const auto *                    traits  = ggml_get_type_traits_cpu(type);
    const size_t                    stride  = ggml_row_size(type, n);
    const std::vector<char>         weights = random_bytes(stride * static_cast<size_t>(n_weights));
    std::vector<std::vector<char>>  inputs;
    std::vector<std::vector<float>> results;
    std::vector<const void *>       input;
    std::vector<float *>            result;
    for (int64_t i = 0; i < n_inputs; i++) {
        std::vector<float> row(static_cast<size_t>(n));
        for (float & x : row) {
            x = static_cast<float>(random_bits() % 2001) * .001F - 1;
        }
        inputs.emplace_back(ggml_row_size(traits->vec_dot_type, n));
        results.emplace_back(n_weights);
        ggml_get_type_traits_cpu(traits->vec_dot_type)->from_float(row.data(), inputs.back().data(), n);
    }
    for (int64_t i = 0; i < n_inputs; i++) {
        input.push_back(inputs[static_cast<size_t>(i)].data());
        result.push_back(results[static_cast<size_t>(i)].data());
    }
    for (const auto dot : spac::kernels::trusted_kernel(type).dot) {
        if (dot != nullptr) {
            dot({n, weights.data(), stride, n_weights, input.data(), result.data(), n_inputs});
        }
    }
}

} // namespace

int main() {
    int n_kernels = 0;
    for (int type = 0; type < GGML_TYPE_COUNT; type++) {
        const auto & kernel = spac::kernels::trusted_kernel(type);
        if (kernel.block == 0) {
            continue;
        }
        n_kernels++;
        for (int64_t blocks = 1; blocks <= 3; blocks++) {
            for (int64_t n_weights = 1; n_weights <= 5; n_weights++) {
                for (const int64_t n_inputs : {1, 2, 3, 4, 5, 17}) {
                    multiply(static_cast<ggml_type>(type), blocks * kernel.block, n_weights, n_inputs);
                }
            }
        }
    }
    if (spac::kernels::quantization_is_trusted()) {
        const std::vector<float> row(512, 1);
        std::vector<char>        out(ggml_row_size(GGML_TYPE_Q8_K, 512));
        spac::kernels::quantize_q8_K(row.data(), out.data(), 512);
    }
    const auto n = static_cast<int>(spac::kernels::kernel_names().size());
    printf("%d kernels of %d, no fault\n", n_kernels, n);
    return n_kernels == n ? 0 : 1;
}
