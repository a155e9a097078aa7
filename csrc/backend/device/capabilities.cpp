#include "backend/device/capabilities.h"

#include "backend/device/ggml_internals.h"
#include "backend/device/stream_gate.h"

#include <cstring>

namespace spac {
namespace {

template <typename Function> Function function_of(ggml_backend_dev_t device, const char * name) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(device);
    return reg == nullptr ? nullptr : reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(reg, name));
}

} // namespace

// CUDA's patched kernels have been tested (tools/cuda_host, bench/gpu_suite), and so have the CPU's.
Capabilities capabilities_of(ggml_backend_dev_t device) {
    if (const auto answer = function_of<CapabilitiesFunction>(device, capabilities_function)) {
        return answer(device);
    }
    Capabilities result       = {};
    const bool   is_cpu       = ggml_backend_dev_type(device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool   is_cuda      = std::strcmp(ggml_backend_reg_name(ggml_backend_dev_backend_reg(device)), "CUDA") == 0;
    result.masked_kernels     = is_cpu || is_cuda;
    result.reaches_host       = is_cpu || is_cuda;
    result.computes_repeats   = is_cpu;
    result.shares_host_cores  = is_cpu;
    result.shares_host_memory = is_cpu;
    return result;
}

StreamExtension * extension_of(ggml_backend_t stream) {
    const auto answer =
        function_of<StreamExtensionFunction>(ggml_backend_get_device(stream), stream_extension_function);
    return answer ? answer(stream) : nullptr;
}

void await_event(ggml_backend_t stream, ggml_backend_event_t event) {
#if defined(SPAC_WITH_CUDA)
    if (cuda_await(stream, event)) {
        return;
    }
#else
    (void)stream;
#endif
    ggml_backend_event_synchronize(event); // reports errors
}

std::unique_ptr<Gate> make_gate(ggml_backend_t backend) {
    if (StreamExtension * const extension = extension_of(backend)) {
        return extension->make_gate();
    }
#if defined(SPAC_WITH_CUDA)
    return cuda_gate(backend); // returns null for other backends
#else
    return nullptr;
#endif
}

} // namespace spac
