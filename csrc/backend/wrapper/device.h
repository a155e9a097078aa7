// The device that llama.cpp sees: it wraps an inner one. And the choice of that.
#pragma once

#include <string>

namespace spac {

// The wrapping device of the inner device `name`, made on first use and kept until the process ends: a
// ggml_backend_dev_t for llama_model_params.devices. Throws InputError naming the known devices.
void * device_handle(const std::string & name);

// The inner device of the one SPAC device that llama.cpp's registry shows to programs that choose none. Must be called
// before the first model is loaded; the default is the first real device, else the simulated device.
void        set_default_device(const std::string & name);
std::string default_device();

} // namespace spac
