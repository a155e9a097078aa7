// The devices that a SPAC device can wrap: the machine's accelerators, which are taken out of ggml's registry, and
// devices that are added to them.
#pragma once

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

} // namespace spac
