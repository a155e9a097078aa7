// Answers ggml's mul (patches/0005-cpu-share-unpacking.patch) where every row is multiplied by one value: experts' rows
// by the router's weights. ggml's own code calls a loop for each element there. A prompt of a small model then spends a
// seventh of its time on these products.
#include "kernels/rows.h"

#include "ggml.h"

#include <algorithm>
#include <cstdint>

extern "C" {
extern bool (*ggml_cpu_mul)(int ith, int nth, const ggml_tensor * dst);
}

namespace spac::kernels {
namespace {

bool is_f32(const ggml_tensor * tensor) { return tensor->type == GGML_TYPE_F32 && tensor->nb[0] == sizeof(float); }

// Returns the address of row `at`, whose indices are taken modulo the tensor's own dimensions.
char * row_of(const ggml_tensor * tensor, const int64_t (&at)[3]) {
    char * address = static_cast<char *>(tensor->data);
    for (int d = 0; d < 3; d++) {
        address += static_cast<size_t>(at[d] % tensor->ne[d + 1]) * tensor->nb[d + 1];
    }
    return address;
}

// Computes one thread's rows. Returns false for products of another form.
bool scale_rows(int ith, int nth, const ggml_tensor * dst) {
    const ggml_tensor * x = dst->src[0];
    const ggml_tensor * y = dst->src[1];
    if (!enabled() || y->ne[0] != 1 || y->type != GGML_TYPE_F32 || !is_f32(x) || !is_f32(dst)) {
        return false;
    }
    const int64_t n_rows = ggml_nrows(x), share = (n_rows + nth - 1) / nth;
    for (int64_t row = share * ith; row < std::min(share * (ith + 1), n_rows); row++) {
        const int64_t at[3] = {row % x->ne[1], row / x->ne[1] % x->ne[2], row / x->ne[1] / x->ne[2]};
        const float   value = *reinterpret_cast<const float *>(row_of(y, at));
        const float * from  = reinterpret_cast<const float *>(row_of(x, at));
        float *       to    = reinterpret_cast<float *>(row_of(dst, at));
#pragma GCC ivdep // `to` may be `from`
        for (int64_t i = 0; i < x->ne[0]; i++) {
            to[i] = from[i] * value;
        }
    }
    return true;
}

const bool registered = [] {
    ggml_cpu_mul = &scale_rows;
    return true;
}();

} // namespace
} // namespace spac::kernels
