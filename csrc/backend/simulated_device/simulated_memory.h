// The simulated device's memory: buffers that are not host memory to ggml, and of a size, so that it can run out like
// a card.
#pragma once

#include "ggml-backend.h"

#include <cstddef>

namespace spac {

// What its buffers leave of its memory (SimulatedSettings::memory_mb), in bytes.
void simulated_memory(size_t * free, size_t * total);

ggml_backend_buffer_type_t simulated_buffer_type();
// Plain host memory under a name of its own: what pinned memory is to a GPU.
ggml_backend_buffer_type_t simulated_pinned_type();

// Registration of host memory with its driver, up to SimulatedSettings::pin_limit_mb together.
bool simulated_register(void * begin, size_t bytes);
void simulated_unregister(void * begin);
// Ends the process where a copy's source lies across the border of a registration, which CUDA refuses.
void simulated_check_source(const void * data, size_t bytes);

} // namespace spac
