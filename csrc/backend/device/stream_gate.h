// A gate in a stream of the wrapped device: the device tells how far it has come, and waits until the host lets it on.
//
// With it, what follows the host's part of a block is queued before the host has done it: no launch lies between the
// two. Who opens a gate must not be the thread that queues, for a driver may wait for the device in any call (a
// kernel's first launch, memory for a pool) while the device waits at the gate. Numbers grow from use to use.
#pragma once

#include "core/error.h"
#include "ggml-backend.h"

#include <cstdint>
#include <memory>

namespace spac {

// The deadline of a wait has passed (patience.h).
class Overdue : public DeviceError {
  public:
    using DeviceError::DeviceError;
};

class Gate {
  public:
    virtual ~Gate() = default;

    // Queued on the stream, by the thread that launches. Throw DeviceError when the device refuses.
    virtual void queue_signal(uint64_t n) = 0; // "what was queued before is over"
    virtual void queue_wait(uint64_t n)   = 0; // nothing queued behind begins before open(n)

    // The host's side, on any one thread. await_signal returns when the stream has passed signal n. It throws
    // DeviceError when the device has failed, and Overdue when the deadline has passed.
    virtual void await_signal(uint64_t n) = 0;
    virtual void open(uint64_t n)         = 0;

    // open(n + for_good), with the last n in use, lets all through that is queued at the gate, now and later. CUDA
    // compares 32 bits cyclically, so a larger number would lie behind.
    static constexpr uint64_t for_good = uint64_t{1} << 30;

    // For messages, on any thread: the last signal that the stream has passed, and what is open; their low 32 bits.
    virtual uint32_t signalled() const = 0;
    virtual uint32_t opened() const    = 0;
};

// Null where the device cannot wait for the host.
std::unique_ptr<Gate> make_gate(ggml_backend_t backend);

} // namespace spac
