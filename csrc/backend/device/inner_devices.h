// The devices that a SPAC device can wrap: the machine's accelerators, taken out of ggml's registry, and what is added
// to them.
#pragma once

#include "ggml-backend.h"

#include <string>

namespace spac {

// Takes the accelerators that ggml has registered out of its registry. Once, while the library is loaded, before SPAC
// itself is registered.
void hide_real_devices();
// Adds a device behind those that are there.
void add_inner_device(ggml_backend_dev_t device);

// The one of this name; case does not matter. Throws InputError naming the known devices.
ggml_backend_dev_t inner_device(const std::string & name);

// The one to wrap where nobody has chosen: the first.
ggml_backend_dev_t first_inner_device();

} // namespace spac
