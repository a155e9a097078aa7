// The ggml backend of a SplitStream, which a SPAC device makes for every llama.cpp context.
//
// The inner backend makes copies and events, and the stream runs graphs. No exception reaches llama.cpp: a graph that
// fails returns a status, and logs the reason.
#pragma once

#include "ggml-backend.h"

namespace spac {

// Makes a backend of the SPAC device `dev`, which wraps `inner`. If `inner` gives no stream, it logs a line and returns
// null.
ggml_backend_t new_stream_backend(ggml_backend_dev_t dev, ggml_backend_dev_t inner);

// Functions that llama.cpp finds by name in the registry entry (ggml_backend_reg_get_proc_address). They accept such
// backends only.
void stream_backend_set_n_threads(ggml_backend_t backend, int n_threads);
void stream_backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data);

} // namespace spac
