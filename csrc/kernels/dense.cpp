#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml-cpu/ggml-cpu-impl.h"
#include "ggml-cpu/llamafile/sgemm.h"
#include "ggml.h"

// A build of ggml may be without it.
#pragma weak llamafile_sgemm

namespace spac::kernels {

bool multiply_dense(const Rows & it, int type) {
    if (llamafile_sgemm == nullptr || it.n_inputs < 2) {
        return false;
    }
    const auto                kind   = static_cast<ggml_type>(type);
    const ggml_type           to     = ggml_get_type_traits_cpu(kind)->vec_dot_type;
    const ggml_compute_params params = {0, 1, 0, nullptr, nullptr, false};
    return llamafile_sgemm(&params, it.n_weights, it.n_inputs, it.n / ggml_blck_size(kind), it.weights,
                           static_cast<int64_t>(it.stride / ggml_type_size(kind)), it.inputs[0],
                           it.n / ggml_blck_size(to), it.results[0], it.results[1] - it.results[0], kind, to,
                           GGML_TYPE_F32);
}

} // namespace spac::kernels
