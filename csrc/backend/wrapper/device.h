// The SPAC device, which llama.cpp sees and which wraps an inner device, and the choice of the inner device.
#pragma once

#include <string>

struct ggml_backend;
struct ggml_backend_buffer_type;
struct ggml_backend_device;

namespace spac {

// Returns the SPAC device that wraps the inner device `name`: a ggml_backend_dev_t for llama_model_params.devices. The
// first call makes it, and it lives until the process ends. Throws InputError, which names the known devices, if the
// name is unknown. Without `split`, it returns the inner device itself, on which llama.cpp puts experts as plain
// tensors.
void * device_handle(const std::string & name, bool split = true);

// Returns the buffer type of the store of that SPAC device. Experts that are loaded into it have slots on this device,
// wherever the dense weights of their layers are. Throws as device_handle() does.
ggml_backend_buffer_type * expert_memory(const std::string & name);

// Sets the inner device of the SPAC device in llama.cpp's registry. Programs that choose no device get this one. Call
// it before the first model is loaded. The default is the first real device, or the simulated device if there is none.
void        set_default_device(const std::string & name);
std::string default_device();

// The ggml backend of a SplitStream, which a SPAC device makes for every llama.cpp context.
//
// The inner backend makes copies and events, and the stream runs graphs. No exception reaches llama.cpp: a graph that
// fails returns a status, and logs the reason.

// Makes a backend of the SPAC device `dev`, which wraps `inner`. If `inner` gives no stream, it logs a line and returns
// null.
ggml_backend * new_stream_backend(ggml_backend_device * dev, ggml_backend_device * inner);

// Functions that llama.cpp finds by name in the registry entry (ggml_backend_reg_get_proc_address). They accept such
// backends only.
void stream_backend_set_n_threads(ggml_backend * backend, int n_threads);
void stream_backend_set_abort_callback(ggml_backend * backend, bool (*callback)(void * data), void * data);

} // namespace spac
