// The simulated device's memory. Its buffers are not host memory for ggml. It has a size, so it can run out like a
// graphics card's.
#pragma once

#include "ggml-backend.h"

#include <cstddef>

namespace spac {

// Returns the size of its memory (SimulatedSettings::memory_mb) and the free part of it, in bytes.
void simulated_memory(size_t * free, size_t * total);

ggml_backend_buffer_type_t simulated_buffer_type();
// Returns the type of its pinned memory: plain host memory under its own name.
ggml_backend_buffer_type_t simulated_pinned_type();

// Register host memory with its driver, up to SimulatedSettings::pin_limit_mb together, and end a registration.
bool simulated_register(void * begin, size_t bytes);
void simulated_unregister(void * begin);
// Ends the process if a copy's source lies across the border of a registration, which CUDA refuses.
void simulated_check_source(const void * data, size_t bytes);

} // namespace spac
