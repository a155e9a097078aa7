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
    Operation op;
    op.kind = Kind::cublas;
    if (!settings().execute.empty()) {
        op.run = std::move(run);
    }
    stream->push(std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}

const char * bytes_at(const void * address) {
    const auto   a      = reinterpret_cast<uint64_t>(address);
    const auto & window = device_window();
    return reinterpret_cast<const char *>(a - reinterpret_cast<uint64_t>(window.base) < window.size ? a + window.offset
                                                                                                    : a);
}

double element(const char * matrix, cudaDataType type, size_t i) {
    switch (type) {
    case CUDA_R_16F:
        return static_cast<double>(ptx::load<ptx::f16>(matrix + i * 2));
    case CUDA_R_16BF:
        return static_cast<double>(ptx::load<ptx::bf16>(matrix + i * 2));
    default:
        return static_cast<double>(ptx::load<float>(matrix + i * 4));
    }
}

void set_element(char * matrix, cudaDataType type, size_t i, double value) {
    switch (type) {
    case CUDA_R_16F:
        ptx::store(matrix + i * 2, static_cast<ptx::f16>(static_cast<float>(value)));
        break;
    case CUDA_R_16BF:
        ptx::store(matrix + i * 2, ptx::bf16(value));
        break;
    default:
        ptx::store(matrix + i * 4, static_cast<float>(value));
    }
}

struct Matrix {
    cudaDataType type;
    size_t       ld; // distance of columns
    bool         transposed = false;
};

// C = alpha A B + beta C, m x n, k products each. Matrices are stored by columns.
struct Product {
    int    m, n, k;
    Matrix a, b, c;
    double alpha, beta;

    void operator()(const void * a_at, const void * b_at, void * c_at) const {
        const char * pa = bytes_at(a_at);
        const char * pb = bytes_at(b_at);
        char *       pc = const_cast<char *>(bytes_at(c_at));
        for (int j = 0; j < n; ++j) {
            for (int i = 0; i < m; ++i) {
                double sum = 0;
                for (int l = 0; l < k; ++l) {
                    sum += element(pa, a.type, a.transposed ? l + i * a.ld : i + l * a.ld) *
                           element(pb, b.type, b.transposed ? j + l * b.ld : l + j * b.ld);
                }
                const size_t at = i + j * c.ld;
                set_element(pc, c.type, at, alpha * sum + (beta != 0 ? beta * element(pc, c.type, at) : 0));
            }
        }
    }
};

double scalar(const void * p, bool half) {
    return half ? static_cast<double>(ptx::load<ptx::f16>(static_cast<const char *>(p)))
                : static_cast<double>(ptx::load<float>(static_cast<const char *>(p)));
}

Product product(cublasOperation_t ta, cublasOperation_t tb, int m, int n, int k, const void * alpha, Matrix a, Matrix b,
                const void * beta, Matrix c, bool half = false) {
    a.transposed = ta != CUBLAS_OP_N;
    b.transposed = tb != CUBLAS_OP_N;
    return {m, n, k, a, b, c, scalar(alpha, half), scalar(beta, half)};
}

Matrix matrix(cudaDataType type, int ld) { return {type, static_cast<size_t>(ld)}; }

// Multiplies matrices whose addresses lie in device memory.
std::function<void()> batched(const Product & one, const void * const * a, const void * const * b, void * const * c,
                              int n) {
    return [=] {
        const auto address = [](const void * list, int i) {
            return ptx::load<void *>(bytes_at(list) + static_cast<size_t>(i) * sizeof(void *));
        };
        for (int i = 0; i < n; ++i) {
            one(address(a, i), address(b, i), address(c, i));
        }
    };
}

size_t size_of(cudaDataType type) { return type == CUDA_R_32F ? 4 : 2; }

std::function<void()> strided(const Product & one, const void * a, long long by_a, const void * b, long long by_b,
                              void * c, long long by_c, int n) {
    return [=] {
        for (int i = 0; i < n; ++i) {
            one(static_cast<const char *>(a) + i * by_a * static_cast<long long>(size_of(one.a.type)),
                static_cast<const char *>(b) + i * by_b * static_cast<long long>(size_of(one.b.type)),
                static_cast<char *>(c) + i * by_c * static_cast<long long>(size_of(one.c.type)));
        }
    };
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
    const Product one = product(ta, tb, m, n, k, alpha, matrix(CUDA_R_32F, lda), matrix(CUDA_R_32F, ldb), beta,
                                matrix(CUDA_R_32F, ldc));
    return push(handle, [=] { one(a, b, c); });
}

PRETEND_API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m, int n,
                                        int k, const void * alpha, const void * a, cudaDataType type_a, int lda,
                                        const void * b, cudaDataType type_b, int ldb, const void * beta, void * c,
                                        cudaDataType type_c, int ldc, cublasComputeType_t compute, cublasGemmAlgo_t) {
    const Product one = product(ta, tb, m, n, k, alpha, matrix(type_a, lda), matrix(type_b, ldb), beta,
                                matrix(type_c, ldc), compute == CUBLAS_COMPUTE_16F);
    return push(handle, [=] { one(a, b, c); });
}

PRETEND_API cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                               int n, int k, const void * alpha, const void * const * a,
                                               cudaDataType type_a, int lda, const void * const * b,
                                               cudaDataType type_b, int ldb, const void * beta, void * const * c,
                                               cudaDataType type_c, int ldc, int n_products,
                                               cublasComputeType_t compute, cublasGemmAlgo_t) {
    const Product one = product(ta, tb, m, n, k, alpha, matrix(type_a, lda), matrix(type_b, ldb), beta,
                                matrix(type_c, ldc), compute == CUBLAS_COMPUTE_16F);
    return push(handle, batched(one, a, b, c, n_products));
}

PRETEND_API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                      int m, int n, int k, const void * alpha, const void * a,
                                                      cudaDataType type_a, int lda, long long by_a, const void * b,
                                                      cudaDataType type_b, int ldb, long long by_b, const void * beta,
                                                      void * c, cudaDataType type_c, int ldc, long long by_c,
                                                      int n_products, cublasComputeType_t compute, cublasGemmAlgo_t) {
    const Product one = product(ta, tb, m, n, k, alpha, matrix(type_a, lda), matrix(type_b, ldb), beta,
                                matrix(type_c, ldc), compute == CUBLAS_COMPUTE_16F);
    return push(handle, strided(one, a, by_a, b, by_b, c, by_c, n_products));
}

PRETEND_API cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb, int m,
                                              int n, int k, const float * alpha, const float * const a[], int lda,
                                              const float * const b[], int ldb, const float * beta, float * const c[],
                                              int ldc, int n_products) {
    const Product one = product(ta, tb, m, n, k, alpha, matrix(CUDA_R_32F, lda), matrix(CUDA_R_32F, ldb), beta,
                                matrix(CUDA_R_32F, ldc));
    return push(handle,
                batched(one, reinterpret_cast<const void * const *>(a), reinterpret_cast<const void * const *>(b),
                        reinterpret_cast<void * const *>(c), n_products));
}

PRETEND_API cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t ta, cublasOperation_t tb,
                                                     int m, int n, int k, const float * alpha, const float * a, int lda,
                                                     long long by_a, const float * b, int ldb, long long by_b,
                                                     const float * beta, float * c, int ldc, long long by_c,
                                                     int n_products) {
    const Product one = product(ta, tb, m, n, k, alpha, matrix(CUDA_R_32F, lda), matrix(CUDA_R_32F, ldb), beta,
                                matrix(CUDA_R_32F, ldc));
    return push(handle, strided(one, a, by_a, b, by_b, c, by_c, n_products));
}

PRETEND_API cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t, cublasFillMode_t,
                                              cublasOperation_t, cublasDiagType_t, int, int, const float *,
                                              const float * const[], int, float * const[], int, int) {
    return push(handle, [] { misuse("triangular solving, which is not computed here"); });
}
