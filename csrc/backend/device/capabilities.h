// The questions that the mechanism asks of a wrapped device and of its streams, beyond ggml's interface.
//
// A device answers with two functions of its registry entry, as ggml's drivers offer their own functions. Their names
// are `capabilities_function` and `stream_extension_function`. capabilities.cpp answers for ggml's own devices.
#pragma once

#include "backend/device/stream_gate.h"
#include "core/trace.h"
#include "ggml-backend.h"

#include <cstddef>
#include <functional>
#include <memory>

namespace spac {

struct Capabilities {
    bool masked_kernels;     // its kernels read masks of ids, and have been tested
    bool reaches_host;       // its kernels read and write the host's pinned memory by the host's address
    bool computes_repeats;   // it computes a token that names an expert twice; GPUs' kernels sort tokens by expert
    bool shares_host_cores;  // it computes on the CPU's cores, which it loses to queueing ahead and to polling
    bool shares_host_memory; // its memory is the host's
};

Capabilities capabilities_of(ggml_backend_dev_t device);

// A stream's functions beyond ggml's interface. The thread that queues on the stream calls them.
class StreamExtension {
  public:
    virtual ~StreamExtension() = default;

    virtual std::unique_ptr<Gate> make_gate() = 0;
    // Calls `what` on a thread of the stream when everything that was queued before has ended.
    virtual void call(std::function<void()> what) = 0;
    // Records the next launch as `span`, with the times at which it was computed.
    virtual void record_launch(std::shared_ptr<Trace> trace, const Span & span) = 0;
    // Marks this stream as one that uploads experts.
    virtual void mark_uploads() = 0;
    // Returns true if a copy has failed since the last call. Call it after synchronizing the stream.
    virtual bool take_failure() = 0;
    // Returns the bytes that the link moves in the fixed time of one copy, which even the smallest copy takes.
    virtual size_t bytes_per_copy() const = 0;
};

// Returns null if the device's streams offer nothing beyond ggml's interface.
StreamExtension * extension_of(ggml_backend_t stream);

constexpr char capabilities_function[]     = "spac_capabilities";
constexpr char stream_extension_function[] = "spac_stream_extension";
using CapabilitiesFunction                 = Capabilities (*)(ggml_backend_dev_t device);
using StreamExtensionFunction              = StreamExtension * (*)(ggml_backend_t stream);

// Waits until the event, which this thread recorded on `stream`, has passed, and leaves the core to others. It may
// return some tens of microseconds later than ggml_backend_event_synchronize, which spins in CUDA's runtime. A failure
// of the device ends the process, as it does in ggml.
void await_event(ggml_backend_t stream, ggml_backend_event_t event);

} // namespace spac
