// A SplitStream as ggml sees it: the backend that a SPAC device makes for every llama.cpp context.
//
// Copies and events are the inner backend's; graphs are the stream's. No exception leaves towards llama.cpp: a graph
// that fails returns a status and says why in the log.
#pragma once

#include "ggml-backend.h"

namespace spac {

// A backend of the SPAC device `dev`, which wraps `inner`; null, and a line in the log, when that gives no stream.
ggml_backend_t new_stream_backend(ggml_backend_dev_t dev, ggml_backend_dev_t inner);

// What llama.cpp finds by name in the registry entry (ggml_backend_reg_get_proc_address), for such backends only.
void stream_backend_set_n_threads(ggml_backend_t backend, int n_threads);
void stream_backend_set_abort_callback(ggml_backend_t backend, ggml_abort_callback callback, void * data);

} // namespace spac
