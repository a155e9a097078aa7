// The devices that a SPAC device can wrap: the machine's accelerators, taken out of ggml's registry, and the stand-in.
#pragma once

#include "ggml-backend.h"

#include <string>

namespace spac {

// Takes the accelerators that ggml has registered out of its registry. Once, while the library is loaded, before SPAC
// itself is registered.
void hide_real_devices();

// The one of this name; case does not matter. Throws InputError naming the known devices.
ggml_backend_dev_t inner_device(const std::string & name);

// The one to wrap where nobody has chosen: the first real device, else the stand-in.
ggml_backend_dev_t first_inner_device();

// Whether its kernels read ids masks, by what has been tried.
bool masks_tried(ggml_backend_dev_t device);
// Tells whether kernels of the device read and write pinned memory of the host by its own address. CUDA's and the
// stand-in's do: the same devices as above.
bool kernels_reach_host(ggml_backend_dev_t device);

} // namespace spac
