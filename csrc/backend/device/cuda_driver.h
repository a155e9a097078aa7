// The functions of CUDA's driver that ggml-cuda does not offer, as far as they are used: stream memory operations, and
// questions about streams and events. They are looked up in the driver that ggml-cuda has loaded, so the C++ compiler
// alone is enough. Only in a build with CUDA.
#pragma once

#include <cstdint>

namespace spac {

struct CudaDriver {
    // The values of cuda.h.
    static constexpr int success = 0, no_context = 201, not_ready = 600;

    using ValueOp = int (*)(void * stream, unsigned long long address, uint32_t value, unsigned flags);

    // Any of them is null where the driver does not have it.
    ValueOp wait_value                               = nullptr;
    ValueOp write_value                              = nullptr;
    int (*query_stream)(void * stream)               = nullptr;
    int (*query_event)(void * event)                 = nullptr;
    int (*get_context)(void ** context)              = nullptr; // the calling thread's
    int (*set_context)(void * context)               = nullptr;
    int (*error_name)(int error, const char ** name) = nullptr;

    // The one that is loaded. It is looked up once, so the first call has to come after a call of ggml-cuda's.
    static const CudaDriver & loaded();
    // Throws DeviceError with the error's name, unless the status is `success`. Needs error_name.
    void check(int status) const;

  private:
    CudaDriver();
};

} // namespace spac
