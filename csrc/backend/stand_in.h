// The stand-in: an asynchronous device made of host memory and a worker thread, where there is no GPU and in tests.
//
// It keeps the habits of a GPU that a plain CPU device hides: its buffers are not host memory, every backend instance
// is a stream with a worker of its own, a launch captures its tensors and runs later, asynchronous copies read and
// write host memory late, streams are ordered by events alone. Speed, memory size and copy faults are settable
// (device.h).
#pragma once

#include "backend/gate.h"
#include "core/trace.h"
#include "ggml-backend.h"

#include <functional>
#include <memory>

namespace spac {

ggml_backend_dev_t stand_in_device();

bool is_stand_in(ggml_backend_t backend);

// A gate in this stream.
std::unique_ptr<Gate> stand_in_gate(ggml_backend_t backend);

// Whether a copy on this stream failed (by injection) since the last call; call after synchronizing.
bool stand_in_take_failure(ggml_backend_t backend);

// Marks the stream as one that uploads experts: injected failures strike there only.
void stand_in_mark_uploads(ggml_backend_t backend);

// Whether the next upload fails by injection; then the one after that is one fewer.
bool stand_in_fail_upload();

// The next launch on this stream is recorded as `span`, with the times at which it was computed.
void stand_in_record(ggml_backend_t backend, std::shared_ptr<Trace> trace, const Span & span);

// Calls `what` on the stream's thread, when all that was queued before is over.
void stand_in_note(ggml_backend_t backend, std::function<void()> what);

} // namespace spac
