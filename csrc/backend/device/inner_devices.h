// The devices that a SPAC device can wrap: the machine's accelerators, which are taken out of ggml's registry, and
// devices that are added to them.
#pragma once

#include "backend/device/device.h"
#include "ggml-backend.h"

#include <string>

namespace spac {

// Takes the accelerators that ggml has registered out of its registry. It is called once, while the library is loaded,
// before SPAC itself is registered.
void hide_real_devices();
// Adds a device at the end of the list.
void add_inner_device(ggml_backend_dev_t device);

// Returns the device of this name; case does not matter. Throws InputError, which names the known devices, if there is
// none.
ggml_backend_dev_t inner_device(const std::string & name);

// Returns the first device, which is wrapped if no device was chosen.
ggml_backend_dev_t first_inner_device();

// The count of the device memory that this process holds, and its limit.
//
// All buffers are counted where they are made and freed: llama.cpp's (weights, contexts, compute buffers) and spac's
// (slots, staging, masks, weight streams). Memory that a driver keeps for itself (its context, kernels, pools of
// scratch) is in none of the figures. A limit makes a large device act as a small one: buffers beyond it are refused,
// and the free memory is the memory that it leaves. Any thread may call these functions.

// Counts the buffers of a device from now on. Call it before the device's first buffer is made. A second call does
// nothing.
void watch_memory(ggml_backend_dev_t device);

DeviceMemory memory_of(ggml_backend_dev_t device);

// Limits the bytes that buffers of this process take together; 0 means no limit. Buffers that exist already stay. The
// peak begins anew.
void set_memory_limit(ggml_backend_dev_t device, size_t bytes);

} // namespace spac
