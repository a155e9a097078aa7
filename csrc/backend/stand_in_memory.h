// The stand-in's memory: buffers that are not host memory to ggml, and of a size, so that it can run out like a card.
#pragma once

#include "ggml-backend.h"

#include <cstddef>

namespace spac {

// What its buffers leave of its memory (StandInSettings::memory_mb), in bytes.
void stand_in_memory(size_t * free, size_t * total);

ggml_backend_buffer_type_t stand_in_buffer_type();
// Plain host memory under a name of its own: what pinned memory is to a GPU.
ggml_backend_buffer_type_t stand_in_pinned_type();

} // namespace spac
