// A wait for an event of the wrapped device that leaves the core to others.
#pragma once

#include "ggml-backend.h"

namespace spac {

// Waits until the event, which this thread recorded on `stream`, has passed. It may return some tens of microseconds
// later than ggml_backend_event_synchronize, which spins in CUDA's runtime. A failure of the device ends the process,
// as it does in ggml.
void await_event(ggml_backend_t stream, ggml_backend_event_t event);

} // namespace spac
