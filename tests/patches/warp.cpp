// The kernels of mmid.cu and add-id.cu, on the CPU, behind a C interface for test_cuda.py.
#include "warp.h"

#include "mmid.cu"

#include "add-id.cu"

static ggml_tensor tensor(void * data, ggml_type type, int64_t ne0, int64_t ne1, int64_t ne2, size_t nb1) {
    ggml_tensor t{};
    t.type  = type;
    t.data  = data;
    t.ne[0] = ne0;
    t.ne[1] = ne1;
    t.ne[2] = ne2;
    t.ne[3] = 1;
    t.nb[0] = 4;
    t.nb[1] = nb1;
    t.nb[2] = nb1 * ne1;
    t.nb[3] = t.nb[2] * ne2;
    return t;
}

extern "C" {

void ggml_abort(const char * file, int line, const char *, ...) { // GGML_ASSERT calls this
    fprintf(stderr, "%s:%d: assertion failed\n", file, line);
    abort();
}

void ids_helper(const int32_t * ids, int32_t * ids_src1, int32_t * ids_dst, int32_t * expert_bounds, int n_experts,
                int n_tokens, int n_used, int nchannels_y, int si1, int sis1, bool write_inverse) {
    ggml_cuda_launch_mm_ids_helper(ids, ids_src1, ids_dst, expert_bounds, n_experts, n_tokens, n_used, nchannels_y, si1,
                                   sis1, write_inverse, nullptr);
}

void add_id(float * a, float * b, int32_t * ids, float * out, int n, int n_used, int n_tokens, int n_experts, int si1) {
    ggml_tensor src0 = tensor(a, GGML_TYPE_F32, n, n_used, n_tokens, size_t(4) * n);
    ggml_tensor src1 = tensor(b, GGML_TYPE_F32, n, n_experts, 1, size_t(4) * n);
    ggml_tensor src2 = tensor(ids, GGML_TYPE_I32, n_used, n_tokens, 1, size_t(4) * si1);
    ggml_tensor dst  = tensor(out, GGML_TYPE_F32, n, n_used, n_tokens, size_t(4) * n);
    dst.src[0]       = &src0;
    dst.src[1]       = &src1;
    dst.src[2]       = &src2;
    ggml_backend_cuda_context context;
    ggml_cuda_op_add_id(context, &dst);
}

#ifdef PATCHED
void zero_masked_rows_of(int32_t * ids, float * out, int n, int n_used, int n_tokens, int si1) {
    ggml_tensor ids_tensor = tensor(ids, GGML_TYPE_I32, n_used, n_tokens, 1, size_t(4) * si1);
    ggml_tensor dst        = tensor(out, GGML_TYPE_F32, n, n_used, n_tokens, size_t(4) * n);
    ggml_cuda_zero_masked_rows(&ids_tensor, &dst, nullptr);
}
#endif
}
