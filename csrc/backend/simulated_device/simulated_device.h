// The simulated device: an asynchronous device made of host memory and a worker thread, where there is no GPU and in
// tests.
//
// It keeps the habits of a GPU that a plain CPU device hides: its buffers are not host memory, every backend instance
// is a stream with a worker of its own, a launch captures its tensors and runs later, asynchronous copies read and
// write host memory late, streams are ordered by events alone. Speed, memory size and copy faults are settable
// (settings.h).
#pragma once

#include "ggml-backend.h"

namespace spac {

ggml_backend_dev_t simulated_device();

// Whether the next upload fails by injection; then the one after that is one fewer.
bool simulated_fail_upload();

} // namespace spac
