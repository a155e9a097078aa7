// What the mechanism asks of the device that it wraps, and of its streams, beyond ggml's interface.
//
// A device answers through its registry entry, as ggml's drivers offer their own functions: `capabilities_function` and
// `stream_extension_function` name them. capabilities.cpp answers for devices of ggml's.
#pragma once

#include "backend/device/stream_gate.h"
#include "core/trace.h"
#include "ggml-backend.h"

#include <cstddef>
#include <functional>
#include <memory>

namespace spac {

struct Capabilities {
    bool masked_kernels;     // its kernels read ids masks, and have been tried
    bool reaches_host;       // its kernels read and write pinned memory of the host by the host's address
    bool computes_repeats;   // it computes a token that names an expert twice; GPUs' kernels sort tokens by experts
    bool shares_host_cores;  // it computes on the CPU's cores: queueing ahead and polling take them from it
    bool shares_host_memory; // its memory is the host's
};

Capabilities capabilities_of(ggml_backend_dev_t device);

// What a stream offers beyond ggml's interface. Called by the thread that queues on the stream.
class StreamExtension {
  public:
    virtual ~StreamExtension() = default;

    virtual std::unique_ptr<Gate> make_gate() = 0;
    // Calls `what` on a thread of the stream when all that was queued before is over.
    virtual void call(std::function<void()> what) = 0;
    // Records the next launch as `span`, with the times at which it was computed.
    virtual void record_launch(std::shared_ptr<Trace> trace, const Span & span) = 0;
    // Says that this stream uploads experts.
    virtual void mark_uploads() = 0;
    // Tells whether a copy has failed since the last call; after the stream was synchronized.
    virtual bool take_failure() = 0;
    // Returns what the link moves in the time that a copy of its own takes, however small.
    virtual size_t bytes_per_copy() const = 0;
};

// Null where the device's streams offer nothing beyond ggml's interface.
StreamExtension * extension_of(ggml_backend_t stream);

constexpr char capabilities_function[]     = "spac_capabilities";
constexpr char stream_extension_function[] = "spac_stream_extension";
using CapabilitiesFunction                 = Capabilities (*)(ggml_backend_dev_t device);
using StreamExtensionFunction              = StreamExtension * (*)(ggml_backend_t stream);

} // namespace spac
