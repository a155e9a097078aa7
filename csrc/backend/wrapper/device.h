// The SPAC device, which llama.cpp sees and which wraps an inner device, and the choice of the inner device.
#pragma once

#include <string>

struct ggml_backend_buffer_type;

namespace spac {

// Returns the SPAC device that wraps the inner device `name`: a ggml_backend_dev_t for llama_model_params.devices. The
// first call makes it, and it lives until the process ends. Throws InputError, which names the known devices, if the
// name is unknown.
void * device_handle(const std::string & name);

// Returns the buffer type of the store of that SPAC device. Experts that are loaded into it have slots on this device,
// wherever the dense weights of their layers are. Throws as device_handle() does.
ggml_backend_buffer_type * expert_memory(const std::string & name);

// Sets the inner device of the SPAC device in llama.cpp's registry. Programs that choose no device get this one. Call
// it before the first model is loaded. The default is the first real device, or the simulated device if there is none.
void        set_default_device(const std::string & name);
std::string default_device();

} // namespace spac
