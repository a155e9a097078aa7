// Answers ggml's mul_mat and mul_mat_id (patches/0005-cpu-share-unpacking.patch): finds the rows in the operator's
// tensors, and shares them out among the threads.
#include "kernels/operator.h"
#include "kernels/rows.h"
#include "kernels/shares.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__SSE__)
#include <immintrin.h>
#endif

extern "C" {
extern int64_t (*ggml_cpu_mul_mat_id)(int ith, int nth, const ggml_tensor * dst, const void * wdata,
                                      const int64_t * counts, const int32_t * rows, void * counter);
extern bool (*ggml_cpu_mul_mat)(int ith, int nth, const ggml_tensor * dst, const void * wdata, void * counter);
extern ggml_from_float_t ggml_cpu_quantize_q8_K;
}

namespace spac::kernels {
namespace {

constexpr int64_t at_once = 16;   // rows of input
constexpr int64_t cached  = 64;   // rows of weights at a time, if there are more rows of input than that
constexpr size_t  fetched = 8192; // bytes of a run's beginning

// One of ggml's operators: its weights have one matrix for each expert of mul_mat_id, or for each plane of mul_mat.
class GgmlOperator : public Operator {
  public:
    GgmlOperator(const ggml_tensor * dst, const void * wdata)
        : Operator(dst->src[0]), dst_(dst), data_(static_cast<const char *>(wdata)),
          row_(ggml_row_size(ggml_get_type_traits_cpu(weights_->type)->vec_dot_type, dst->src[1]->ne[0])) {}

    // Returns true if the rows of input have been quantized.
    bool is_quantized() const { return data_ != dst_->src[1]->data; }

  protected:
    const ggml_tensor * dst_;
    const char *        data_; // quantized rows of input, without gaps
    size_t              row_;
};

class Experts : public GgmlOperator {
  public:
    // `counts` has each expert's number of pairs (place of the expert among the token's, token). `rows` has the pairs,
    // with n_pairs places for each expert. Experts with `too_many` or more are not computed.
    Experts(const ggml_tensor * dst, const void * wdata, const int64_t * counts, const int32_t * rows, int64_t too_many)
        : GgmlOperator(dst, wdata), counts_(counts), rows_(rows), n_pairs_(dst->src[2]->ne[0] * dst->src[2]->ne[1]),
          n_places_(dst->src[1]->ne[1]), too_many_(too_many) {}

    int64_t      n_matrices() const override { return weights_->ne[2]; }
    int64_t      n_inputs(int64_t expert) const override { return counts_[expert] < too_many_ ? counts_[expert] : 0; }
    const char * weights(int64_t expert) const override {
        return static_cast<const char *>(weights_->data) + static_cast<size_t>(expert) * weights_->nb[2];
    }
    const char * input(int64_t expert, int64_t i) const override {
        const int32_t * pair = rows_ + 2 * (expert * n_pairs_ + i);
        return data_ + static_cast<size_t>(pair[0] % n_places_ + pair[1] * n_places_) * row_;
    }
    char * result(int64_t expert, int64_t i) const override {
        const int32_t * pair = rows_ + 2 * (expert * n_pairs_ + i);
        return static_cast<char *>(dst_->data) + static_cast<size_t>(pair[0]) * dst_->nb[1] +
               static_cast<size_t>(pair[1]) * dst_->nb[2];
    }

  private:
    const int64_t * counts_;
    const int32_t * rows_;
    int64_t         n_pairs_, n_places_, too_many_;
};

class Planes : public GgmlOperator {
  public:
    using GgmlOperator::GgmlOperator;

    int64_t      n_matrices() const override { return dst_->ne[2] * dst_->ne[3]; }
    int64_t      n_inputs(int64_t) const override { return dst_->ne[1]; }
    const char * weights(int64_t plane) const override {
        const int64_t i2 = plane % dst_->ne[2] / (dst_->ne[2] / weights_->ne[2]);
        const int64_t i3 = plane / dst_->ne[2] / (dst_->ne[3] / weights_->ne[3]);
        return static_cast<const char *>(weights_->data) + static_cast<size_t>(i2) * weights_->nb[2] +
               static_cast<size_t>(i3) * weights_->nb[3];
    }
    const char * input(int64_t plane, int64_t i) const override {
        return data_ + static_cast<size_t>(plane * dst_->ne[1] + i) * row_;
    }
    char * result(int64_t plane, int64_t i) const override {
        return static_cast<char *>(dst_->data) + static_cast<size_t>(i) * dst_->nb[1] +
               static_cast<size_t>(plane % dst_->ne[2]) * dst_->nb[2] +
               static_cast<size_t>(plane / dst_->ne[2]) * dst_->nb[3];
    }
};

bool computes(Dot dot, const Rows & rows) {
    try {
        return dot != nullptr && dot(rows);
    } catch (const std::bad_alloc &) {
        return false; // ggml's own functions need no memory
    }
}

// Computes one thread's part.
void compute(const GgmlOperator & it, const ggml_tensor * weights, int ith, int nth, void * counter) {
    Shares shares(it.n_matrices(), weights->ne[1], {ith, nth}, *static_cast<std::atomic<int> *>(counter), nth,
                  [&](int64_t matrix) { return it.n_inputs(matrix); });
    compute_shares(it, shares, [](const Run &) {});
}
static_assert(sizeof(std::atomic<int>) == sizeof(int));

// All threads have to return the same, so the result depends only on what they share.
int64_t mul_mat_id(int ith, int nth, const ggml_tensor * dst, const void * wdata, const int64_t * counts,
                   const int32_t * rows, void * counter) {
    const int64_t too_many = tiled_rows(dst->src[0]->type);
    const Experts experts(dst, wdata, counts, rows, too_many);
    if (!enabled() || !experts.is_quantized() || !has_kernel(dst->src[0])) {
        return 0;
    }
    compute(experts, dst->src[0], ith, nth, counter);
    return too_many;
}

bool mul_mat(int ith, int nth, const ggml_tensor * dst, const void * wdata, void * counter) {
    const Planes planes(dst, wdata);
    if (!enabled() || !planes.is_quantized() || !has_kernel(dst->src[0]) ||
        !computes_dense(planes.type(), planes.n_inputs(0))) {
        return false;
    }
    compute(planes, dst->src[0], ith, nth, counter);
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

// This is static initialization, like the device's registration (backend/wrapper/device.cpp): the library is linked
// whole.
const bool registered = [] {
    ggml_cpu_mul_mat_id    = &mul_mat_id;
    ggml_cpu_mul_mat       = &mul_mat;
    ggml_cpu_quantize_q8_K = &quantize;
    return true;
}();

} // namespace

void multiply(const Operator & it, int64_t matrix, int64_t begin, int64_t end) {
    const int64_t  n_inputs = it.n_inputs(matrix);
    const int64_t  block    = n_inputs > at_once ? cached : end - begin;
    const Kernel & kernel   = trusted_kernel(it.type());
    const Choice   chosen   = choice(it.type());
    for (int64_t row = begin; row < end; row += block) {
        for (int64_t first = 0; first < n_inputs; first += at_once) {
            const int64_t n = std::min(at_once, n_inputs - first);
            const void *  input[at_once];
            float *       result[at_once];
            for (int64_t k = 0; k < n; k++) {
                input[k]  = it.input(matrix, first + k);
                result[k] = reinterpret_cast<float *>(it.result(matrix, first + k)) + row;
            }
            const Rows rows = {it.n(),
                               it.weights(matrix) + static_cast<size_t>(row) * it.stride(),
                               it.stride(),
                               std::min(block, end - row),
                               input,
                               result,
                               n};
            const Dot  dot  = kernel.dot[static_cast<size_t>(n == 1 ? chosen.one : chosen.several)];
            if (!computes(dot, rows)) {
                multiply_by_pairs(rows, it.type());
            }
        }
    }
}

void fetch([[maybe_unused]] const Operator & it, [[maybe_unused]] const Run & run) {
#if defined(__SSE__)
    const char * const begin   = it.weights(run.matrix) + static_cast<size_t>(run.begin) * it.stride();
    const size_t       n_bytes = std::min(fetched, static_cast<size_t>(run.end - run.begin) * it.stride());
    for (size_t i = 0; i < n_bytes; i += 64) {
        _mm_prefetch(begin + i, _MM_HINT_T0);
    }
#endif
}

void quantize_row(int type, const float * x, void * y, int64_t n) {
    if (type == GGML_TYPE_Q8_K) {
        quantize(x, y, n);
    } else {
        ggml_get_type_traits_cpu(static_cast<ggml_type>(type))->from_float(x, y, n);
    }
}

int64_t tiled_rows(int type) {
    static const char * const forced = std::getenv("GGML_CPU_TILED_MM_FORCE"); // ggml-cpu/tiled; for tests
    static const int64_t      first  = forced != nullptr && std::atoi(forced) == 1 ? 1 : 8;
    const bool tiled = ggml_get_type_traits_cpu(static_cast<ggml_type>(type))->vec_dot_type == GGML_TYPE_Q8_K;
    return tiled ? first : INT64_MAX;
}

} // namespace spac::kernels
