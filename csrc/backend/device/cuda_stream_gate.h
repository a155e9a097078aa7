// A stream gate for CUDA, made of stream memory operations. The device writes a word in pinned host memory, and waits
// until another word has reached a value. No kernel runs during the wait, so a graphics card's watchdog does not stop
// it.
#pragma once

#include "backend/device/stream_gate.h"

namespace spac {

// Returns null if the backend is not CUDA's, or if the driver or the card cannot do it. Each new gate is tried once.
std::unique_ptr<Gate> cuda_gate(ggml_backend_t backend);

} // namespace spac
