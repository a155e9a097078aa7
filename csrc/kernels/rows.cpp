// Multiplies rows in ggml's own way.
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>

namespace spac::kernels {

void multiply_by_pairs(const Rows & it, int type) {
    constexpr int64_t chunk   = 16; // rows of weights that stay in a cache for all rows of input
    const auto        vec_dot = ggml_get_type_traits_cpu(static_cast<ggml_type>(type))->vec_dot;
    for (int64_t first = 0; first < it.n_weights; first += chunk) {
        for (int64_t i = 0; i < it.n_inputs; i++) {
            for (int64_t row = first; row < std::min(first + chunk, it.n_weights); row++) {
                vec_dot(static_cast<int>(it.n), it.results[i] + row, 0,
                        it.weights + static_cast<size_t>(row) * it.stride, 0, it.inputs[i], 0, 1);
            }
        }
    }
}

} // namespace spac::kernels
