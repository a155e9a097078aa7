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
// Asks the driver now and then. Linux adds some 50 µs to a short sleep, which is little beside the copy of an expert.
// Returns whether the event has passed; false also where the driver cannot tell, or tells of an error.
//
// The driver wants the calling thread to have a context. It has one: the runtime has made it current when this thread
// recorded the event.
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
    ggml_backend_event_synchronize(event); // which tells of errors
}

} // namespace spac
