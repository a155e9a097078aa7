// Replaces cuBLAS on a machine that has none, so that the library loads: every call fails. Quantized weights decode
// without it. Dense F32 and F16 products of more than a few tokens do not work, among them a prompt's routers.
#define FAILS(name) \
    int name(void) { return 1 /* CUBLAS_STATUS_NOT_INITIALIZED */; }
FAILS(cublasCreate_v2)
FAILS(cublasDestroy_v2)
FAILS(cublasGemmBatchedEx)
FAILS(cublasGemmEx)
FAILS(cublasGemmStridedBatchedEx)
FAILS(cublasSetMathMode)
FAILS(cublasSetStream_v2)
FAILS(cublasSetWorkspace_v2)
FAILS(cublasSgemmBatched)
FAILS(cublasSgemmStridedBatched)
FAILS(cublasSgemm_v2)
FAILS(cublasStrsmBatched)
const char * cublasGetStatusString(int status) { return status ? "this machine has no cuBLAS" : "success"; }
