// The simulated device's memory. Its buffers are not host memory for ggml. It has a size, so it can run out like a
// graphics card's.
#pragma once

#include "backend/device/ggml_internals.h"

#include <cstddef>

namespace spac {

class SimulatedDevice;

// Returns the size of a device's memory (SimulatedSettings::memory_mb) and the free part of it, in bytes.
void simulated_memory(const SimulatedDevice & device, size_t * free, size_t * total);

// Return the types of buffers in a device's memory, and in its pinned memory, which is plain host memory under its own
// name.
ggml_backend_buffer_type simulated_memory_type(SimulatedDevice & device);
ggml_backend_buffer_type simulated_pinned_type(SimulatedDevice & device);

// Register host memory with the devices' driver, up to SimulatedSettings::pin_limit_mb together, and end a
// registration.
bool simulated_register(void * begin, size_t bytes);
void simulated_unregister(void * begin);
// Ends the process if a copy's source lies across the border of a registration, which CUDA refuses.
void simulated_check_source(const void * data, size_t bytes);

} // namespace spac
