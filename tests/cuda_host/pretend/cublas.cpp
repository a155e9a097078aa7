// cuBLAS: products that compute nothing, on the stream that the handle was given.
#include "counts.h"
#include "runtime.h"
#include "stream.h"

#include <cublas_v2.h>

using namespace pretend;

namespace {

struct Handle {
    cudaStream_t stream = nullptr;
};

cublasStatus_t multiply(cublasHandle_t handle) {
    const StreamPtr stream = stream_of(reinterpret_cast<Handle *>(handle)->stream);
    if (stream == nullptr) {
        return CUBLAS_STATUS_NOT_INITIALIZED;
    }
    count(Kind::cublas, stream->number);
    Operation op;
    op.kind = Kind::cublas;
    stream->push(std::move(op));
    return CUBLAS_STATUS_SUCCESS;
}

} // namespace

PRETEND_API cublasStatus_t cublasCreate_v2(cublasHandle_t * handle) {
    if (under_capture()) {
        misuse("a cuBLAS handle is made while a stream is under capture");
    }
    *handle = reinterpret_cast<cublasHandle_t>(new Handle);
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    delete reinterpret_cast<Handle *>(handle);
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    reinterpret_cast<Handle *>(handle)->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

PRETEND_API const char *   cublasGetStatusString(cublasStatus_t) { return "pretend cuBLAS status"; }
PRETEND_API cublasStatus_t cublasSetMathMode(cublasHandle_t, cublasMath_t) { return CUBLAS_STATUS_SUCCESS; }
PRETEND_API cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void *, size_t) { return CUBLAS_STATUS_SUCCESS; }

PRETEND_API cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                          const float *, const float *, int, const float *, int, const float *, float *,
                                          int) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int, int,
                                        const void *, const void *, cudaDataType, int, const void *, cudaDataType, int,
                                        const void *, void *, cudaDataType, int, cublasComputeType_t,
                                        cublasGemmAlgo_t) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasGemmBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                                               int, const void *, const void * const *, cudaDataType, int,
                                               const void * const *, cudaDataType, int, const void *, void * const *,
                                               cudaDataType, int, int, cublasComputeType_t, cublasGemmAlgo_t) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int,
                                                      int, int, const void *, const void *, cudaDataType, int,
                                                      long long, const void *, cudaDataType, int, long long,
                                                      const void *, void *, cudaDataType, int, long long, int,
                                                      cublasComputeType_t, cublasGemmAlgo_t) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasSgemmBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int, int,
                                              int, const float *, const float * const[], int, const float * const[],
                                              int, const float *, float * const[], int, int) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t, cublasOperation_t, int,
                                                     int, int, const float *, const float *, int, long long,
                                                     const float *, int, long long, const float *, float *, int,
                                                     long long, int) {
    return multiply(handle);
}

PRETEND_API cublasStatus_t cublasStrsmBatched(cublasHandle_t handle, cublasSideMode_t, cublasFillMode_t,
                                              cublasOperation_t, cublasDiagType_t, int, int, const float *,
                                              const float * const[], int, float * const[], int, int) {
    return multiply(handle);
}
