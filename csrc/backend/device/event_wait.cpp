#include "backend/device/event_wait.h"

#include "backend/device/ggml_internals.h"

#if defined(SPAC_WITH_CUDA)
#include "backend/device/cuda_driver.h"
#include "ggml-cuda.h"

#include <chrono>
#include <thread>
#endif

namespace spac {
namespace {

#if defined(SPAC_WITH_CUDA)
// Returns true when the event has passed, and false if the driver cannot tell or reports an error. It sleeps between
// queries. Linux adds some 50 µs to a short sleep, which is little beside the copy of an expert.
//
// The driver needs a context on the calling thread. The runtime made it current when this thread recorded the event.
bool poll(ggml_backend_event_t event) {
    const CudaDriver & driver = CudaDriver::loaded();
    if (driver.query_event == nullptr) {
        return false;
    }
    int status = driver.query_event(event->context);
    while (status == CudaDriver::not_ready) {
        std::this_thread::sleep_for(std::chrono::microseconds(20));
        status = driver.query_event(event->context);
    }
    return status == CudaDriver::success;
}
#endif

} // namespace

void await_event(ggml_backend_t stream, ggml_backend_event_t event) {
#if defined(SPAC_WITH_CUDA)
    if (ggml_backend_is_cuda(stream) && poll(event)) {
        return;
    }
#else
    (void)stream;
#endif
    ggml_backend_event_synchronize(event); // reports errors
}

} // namespace spac
