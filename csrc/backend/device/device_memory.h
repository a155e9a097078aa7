// Counts what this process holds of a device's memory, and holds it to a limit.
//
// Counted where buffers are made and freed, whoever asks for them: llama.cpp's (weights, contexts, compute buffers) and
// ours (slots, staging, masks, weight streams). What a driver keeps for itself (its context, kernels, pools of scratch)
// is in none of the figures. A limit makes a large device act as a small one: buffers beyond it are refused, and
// whoever asks how much is free hears what the limit leaves. Any thread.
#pragma once

#include "backend/device/device.h"
#include "ggml-backend.h"

namespace spac {

// Counts the buffers of a device from now on: before its first one is made. Calling it again does nothing.
void watch_memory(ggml_backend_dev_t device);

DeviceMemory memory_of(ggml_backend_dev_t device);

// What buffers of this process may take together, 0: no limit. What is there already stays; the peak begins anew.
void set_memory_limit(ggml_backend_dev_t device, size_t bytes);

} // namespace spac
