#if defined(SPAC_WITH_CUDA)
#include "backend/device/cuda_driver.h"

#include "core/error.h"

#include <string>

#include <dlfcn.h>

namespace spac {
namespace {

template <typename Function> void find(void * library, const char * name, Function & function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
}

} // namespace

CudaDriver::CudaDriver() {
    void * library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD); // ggml-cuda has loaded it
    if (library != nullptr) {
        find(library, "cuStreamWaitValue32_v2", wait_value);
        find(library, "cuStreamWriteValue32_v2", write_value);
        find(library, "cuStreamQuery", query_stream);
        find(library, "cuEventQuery", query_event);
        find(library, "cuCtxGetCurrent", get_context);
        find(library, "cuCtxSetCurrent", set_context);
        find(library, "cuGetErrorName", error_name);
    }
}

const CudaDriver & CudaDriver::loaded() {
    static const CudaDriver known;
    return known;
}

void CudaDriver::check(int status) const {
    if (status != success) {
        const char * name = nullptr;
        error_name(status, &name);
        throw DeviceError(std::string("the GPU failed: ") + (name != nullptr ? name : std::to_string(status)));
    }
}

} // namespace spac
#endif
