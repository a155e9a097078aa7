// What ggml's mul_mat and mul_mat_id ask (patches/0005-cpu-share-unpacking.patch): finds the rows in the operator's
// tensors.
#include "kernels/quantize.h"
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <new>

extern "C" {
extern bool (*ggml_cpu_mul_rows)(const ggml_tensor * dst, const void * wdata, int64_t expert,
                                 const int32_t * expert_rows, int64_t ir0_start, int64_t ir0_end, int64_t ir1_start,
                                 int64_t ir1_end);
extern ggml_from_float_t ggml_cpu_quantize_q8_K;
}

namespace spac::kernels {
namespace {

constexpr int64_t at_once = 16; // rows of input

struct Place {
    const char * input;
    float *      result;
};

// Where row i of an operator's quantized input lies, and its result.
class Inputs {
  public:
    Inputs(const ggml_tensor * dst, const void * wdata, const int32_t * expert_rows)
        : dst_(dst), data_(static_cast<const char *>(wdata)), expert_rows_(expert_rows) {
        const ggml_tensor * input = dst->src[1];
        n_                        = input->ne[1];
        row_   = ggml_row_size(ggml_get_type_traits_cpu(dst->src[0]->type)->vec_dot_type, input->ne[0]);
        plane_ = row_ * static_cast<size_t>(n_);
    }

    Place operator[](int64_t i) const {
        // An expert's table has pairs (place of the expert among the token's, token).
        const int64_t i1     = expert_rows_ ? expert_rows_[2 * i] : i;
        const int64_t i2     = expert_rows_ ? expert_rows_[2 * i + 1] : 0;
        char *        result = static_cast<char *>(dst_->data) + static_cast<size_t>(i1) * dst_->nb[1] +
                        static_cast<size_t>(i2) * dst_->nb[2];
        return {data_ + static_cast<size_t>(i1 % n_) * row_ + static_cast<size_t>(i2) * plane_,
                reinterpret_cast<float *>(result)};
    }

  private:
    const ggml_tensor * dst_;
    const char *        data_;
    const int32_t *     expert_rows_;
    int64_t             n_;
    size_t              row_, plane_;
};

bool mul_rows(const ggml_tensor * dst, const void * wdata, int64_t expert, const int32_t * expert_rows,
              int64_t ir0_start, int64_t ir0_end, int64_t ir1_start, int64_t ir1_end) {
    const ggml_tensor * weights = dst->src[0];
    const bool          plane   = dst->ne[2] == 1 && dst->ne[3] == 1;
    if (!enabled() || wdata == dst->src[1]->data || (expert_rows == nullptr && !plane)) {
        return false;
    }
    try {
        const Kernel & kernel = trusted_kernel(weights->type);
        if (kernel.block == 0 || weights->ne[0] % kernel.block != 0 || ir1_end <= ir1_start) {
            return false;
        }
        const int64_t row_count = std::min<int64_t>(ir1_end - ir1_start, max_inputs);
        const Way     way       = ways(weights->type)[static_cast<size_t>(row_count - 1)];
        const Dot     dot       = kernel.dot[static_cast<size_t>(way)];
        if (dot == nullptr) {
            return false; // ggml's own
        }
        const Inputs inputs(dst, wdata, expert_rows);
        const char * data = static_cast<const char *>(weights->data) + static_cast<size_t>(expert) * weights->nb[2] +
                            static_cast<size_t>(ir0_start) * weights->nb[1];
        for (int64_t i = ir1_start; i < ir1_end; i += at_once) {
            const int64_t n = std::min(at_once, ir1_end - i);
            const void *  input[at_once];
            float *       result[at_once];
            for (int64_t k = 0; k < n; k++) {
                const Place place = inputs[i + k];
                input[k]          = place.input;
                result[k]         = place.result + ir0_start;
            }
            if (!dot({weights->ne[0], data, weights->nb[1], ir0_end - ir0_start, input, result, n})) {
                return false;
            }
        }
    } catch (const std::bad_alloc &) {
        return false; // ggml's own need no memory
    }
    return true;
}

bool can_quantize() {
    try {
        return enabled() && quantization_is_trusted();
    } catch (const std::bad_alloc &) {
        return false;
    }
}

void quantize(const float * x, void * y, int64_t n) {
    if (can_quantize()) {
        quantize_q8_K(x, y, n);
    } else {
        ggml_get_type_traits_cpu(GGML_TYPE_Q8_K)->from_float(x, y, n);
    }
}

// Static initialization, like the device's registration (backend/device.cpp): the library is linked whole.
const bool registered = [] {
    ggml_cpu_mul_rows      = &mul_rows;
    ggml_cpu_quantize_q8_K = &quantize;
    return true;
}();

} // namespace

} // namespace spac::kernels
