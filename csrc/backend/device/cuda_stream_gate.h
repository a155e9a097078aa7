// A gate in a CUDA stream, by stream memory operations: the device writes a word in pinned host memory, and waits until
// another one has reached a value. No kernel spins, and no graphics card's watchdog knows.
#pragma once

#include "backend/device/stream_gate.h"

namespace spac {

// Null when the backend is not CUDA's, or when the driver or the card cannot do it (it is tried once).
std::unique_ptr<Gate> cuda_gate(ggml_backend_t backend);

} // namespace spac
