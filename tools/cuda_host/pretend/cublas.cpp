// cuBLAS's products, on the handle's stream. They compute if kernels do (settings().execute).
#include "../ptx/numbers.h"
#include "counts.h"
#include "memory.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <cstring>
#include <functional>
#include <utility>

#include <cublas_v2.h>

using namespace pretend;

namespace {

struct Handle {
    cudaStream_t stream = nullptr;
    int          card   = current_card();
};

cublasStatus_t push(cublasHandle_t handle, std::function<void()> run) {
    const StreamPtr stream = stream_of(reinterpret_cast<Handle *>(handle)->stream);
    if (stream == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    count(Kind::cublas, stream->number);
    stream->push({Kind::cublas, settings().execute.empty() ? nullptr : std::move(run)});
    return CUBLAS_STATUS_SUCCESS;
}

const char * bytes_at(const void * address) {
    const Window & window = device_window();
    const auto *   p      = static_cast<const char *>(address);
    return p >= window.base && p < window.base + window.size ? p + window.offset : p;
}

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

double element(const char * p, cudaDataType type) {
    return type == CUDA_R_16F    ? static_cast<double>(ptx::load<ptx::f16>(p))
           : type == CUDA_R_16BF ? static_cast<double>(ptx::load<ptx::bf16>(p))
                                 : static_cast<double>(ptx::load<float>(p));
}

void set_element(char * p, cudaDataType type, double value) {
    if (type == CUDA_R_16F) {
        ptx::store(p, static_cast<ptx::f16>(static_cast<float>(value)));
    } else if (type == CUDA_R_16BF) {
        ptx::store(p, ptx::bf16(value));
    } else {
        ptx::store(p, static_cast<float>(value));
    }
}

// A matrix, or several. It is stored by columns.
struct Matrix {
    const void * at; // with `is_list`, a list in device memory of the matrices' addresses
    cudaDataType type;
    int          ld;          // distance of columns
    long long    by      = 0; // distance of the next matrix, in elements
    bool         is_list = false, transposed = false;

    const char * of(int i) const {
        return bytes_at(is_list ? ptx::load<void *>(bytes_at(at) + i * sizeof(void *))
                                : static_cast<const char *>(at) + i * by * static_cast<long long>(size_of(type)));
    }
    size_t offset(int row, int column) const {
        return (transposed ? column + size_t(row) * ld : row + size_t(column) * ld) * size_of(type);
    }
};

double scalar(const void * p, bool half) {
    return element(static_cast<const char *>(p), half ? CUDA_R_16F : CUDA_R_32F);
}

// Queues n_products times C = alpha A B + beta C, m x n, k products each.
cublasStatus_t multiply(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k,
                        const void * alpha_at, Matrix a, Matrix b, const void * beta_at, const Matrix & c,
                        int n_products = 1, cublasComputeType_t compute = CUBLAS_COMPUTE_32F) {
    const bool   half  = compute == CUBLAS_COMPUTE_16F;
    const double alpha = scalar(alpha_at, half), beta = scalar(beta_at, half);
    a.transposed = ta != CUBLAS_OP_N;
    b.transposed = tb != CUBLAS_OP_N;
    return push(handle, [=] {
        for (int each = 0; each < n_products; ++each) {
            const char * pa = a.of(each);
            const char * pb = b.of(each);
            auto *       pc = const_cast<char *>(c.of(each));
            for (int j = 0; j < n; ++j) {
                for (int i = 0; i < m; ++i) {
                    double sum = 0;
                    for (int l = 0; l < k; ++l) {
                        sum += element(pa + a.offset(i, l), a.type) * element(pb + b.offset(l, j), b.type);
                    }
                    char * at = pc + c.offset(i, j);
                    set_element(at, c.type, alpha * sum + (beta != 0 ? beta * element(at, c.type) : 0));
                }
            }
        }
    });
}

} // namespace

PRETEND_API cublasStatus_t cublasCreate_v2(cublasHandle_t * handle) {
    if (under_capture()) {
        misuse("a cuBLAS handle is made while a stream is under capture");
    }
    if (settings().handle_bytes > 0 && !device_take(current_card(), settings().handle_bytes)) {
        return CUBLAS_STATUS_ALLOC_FAILED;
    }
    *handle = reinterpret_cast<cublasHandle_t>(new Handle);
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    auto * const known = reinterpret_cast<Handle *>(handle);
    device_give(known->card, settings().handle_bytes);
    delete known;
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    reinterpret_cast<Handle *>(handle)->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API const char *   cublasGetStatusString(cublasStatus_t) { return "pretend cuBLAS status"; }
PRETEND_API cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
PRETEND_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }

PRETEND_API cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                          int n, int k, const float * alpha, const float * a, int lda, const float * b,
                                          int ldb, const float * beta, float * c, int ldc) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, CUDA_R_32F, lda}, {b, CUDA_R_32F, ldb}, beta,
                    {c, CUDA_R_32F, ldc});
}

PRETEND_API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                        int k, const void * alpha, const void * a, cudaDataType type_a, int lda,
                                        const void * b, cudaDataType type_b, int ldb, const void * beta, void * c,
                                        cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, type_a, lda}, {b, type_b, ldb}, beta, {c, type_c, ldc}, 1,
                    compute);
}

PRETEND_API cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                               int n, int k, const void * alpha, const void * const * a,
                                               cudaDataType type_a, int lda, const void * const * b,
                                               cudaDataType type_b, int ldb, const void * beta, void * const * c,
                                               cudaDataType type_c, int ldc, int n_products,
                                               cublasComputeType_t compute, cublasGemmAlgo_t) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, type_a, lda, 0, true}, {b, type_b, ldb, 0, true}, beta,
                    {c, type_c, ldc, 0, true}, n_products, compute);
}

PRETEND_API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                      int m, int n, int k, const void * alpha, const void * a,
                                                      cudaDataType type_a, int lda, long long by_a, const void * b,
                                                      cudaDataType type_b, int ldb, long long by_b, const void * beta,
                                                      void * c, cudaDataType type_c, int ldc, long long by_c,
                                                      int n_products, cublasComputeType_t compute, cublasGemmAlgo_t) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, type_a, lda, by_a}, {b, type_b, ldb, by_b}, beta,
                    {c, type_c, ldc, by_c}, n_products, compute);
}

PRETEND_API cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                              int n, int k, const float * alpha, const float * const a[], int lda,
                                              const float * const b[], int ldb, const float * beta, float * const c[],
                                              int ldc, int n_products) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, CUDA_R_32F, lda, 0, true}, {b, CUDA_R_32F, ldb, 0, true}, beta,
                    {c, CUDA_R_32F, ldc, 0, true}, n_products);
}

PRETEND_API cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                     int m, int n, int k, const float * alpha, const float * a, int lda,
                                                     long long by_a, const float * b, int ldb, long long by_b,
                                                     const float * beta, float * c, int ldc, long long by_c,
                                                     int n_products) {
    return multiply(handle, ta, tb, m, n, k, alpha, {a, CUDA_R_32F, lda, by_a}, {b, CUDA_R_32F, ldb, by_b}, beta,
                    {c, CUDA_R_32F, ldc, by_c}, n_products);
}

PRETEND_API cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t, cublasFillMode_t,
                                              cublasOperation_t, cublasDiagType_t, int, int, const float *,
                                              const float * const[], int, float * const[], int, int) {
    return push(handle, [] { misuse("triangular solving, which is not computed here"); });
}
