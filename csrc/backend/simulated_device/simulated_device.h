// The simulated device: an asynchronous device made of host memory and a worker thread, for tests and for machines
// without a GPU.
//
// It behaves like a GPU where a plain CPU device does not. Its buffers are not host memory. Every backend instance is a
// stream with its own worker. A launch captures its tensors and runs later. Asynchronous copies read and write host
// memory late. Only events order streams. Speed, memory size and faults can be set (settings.h).
#pragma once

#include "ggml-backend.h"

namespace spac {

ggml_backend_dev_t simulated_device();

// Returns true if the next upload has to fail, and counts it off SimulatedSettings::fail_uploads.
bool simulated_fail_upload();

} // namespace spac
