// Functions of CUDA's driver that spac uses and ggml-cuda does not offer: stream memory operations, and queries of
// streams and events. They are looked up in the driver that ggml-cuda has loaded, so this code needs no CUDA compiler.
// It is part of builds with CUDA only.
#pragma once

#include <cstdint>

namespace spac {

struct CudaDriver {
    // Values of cuda.h.
    static constexpr int success = 0, no_context = 201, not_ready = 600;

    using ValueOp = int (*)(void * stream, unsigned long long address, uint32_t value, unsigned flags);

    // Each pointer is null if the driver lacks the function.
    ValueOp wait_value                               = nullptr;
    ValueOp write_value                              = nullptr;
    int (*query_stream)(void * stream)               = nullptr;
    int (*query_event)(void * event)                 = nullptr;
    int (*get_context)(void ** context)              = nullptr; // gets the calling thread's
    int (*set_context)(void * context)               = nullptr;
    int (*error_name)(int error, const char ** name) = nullptr;

    // Returns the loaded driver. It is looked up once, so the first call has to come after a call of ggml-cuda.
    static const CudaDriver & loaded();
    // Throws DeviceError with the error's name, unless the status is `success`. It needs error_name.
    void check(int status) const;

  private:
    CudaDriver();
};

} // namespace spac
