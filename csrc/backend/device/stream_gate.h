// A stream gate: the device signals how far its stream has come, and waits until the host opens the gate.
//
// With it, the work behind the host's part of a block is queued before the host has done its part, so no launch lies
// between the two. The thread that opens a gate must not be the thread that queues. A driver may wait for the device in
// any call (a kernel's first launch, memory for a pool) while the device waits at the gate. Numbers grow from use to
// use.
#pragma once

#include "backend/device/settings.h"
#include "core/error.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>

struct ggml_backend;
struct ggml_backend_event;

namespace spac {

// Thrown when the deadline of a wait has passed (Patience).
class Overdue : public DeviceError {
  public:
    using DeviceError::DeviceError;
};

class Gate {
  public:
    virtual ~Gate() = default;

    // Queue an operation on the stream. The thread that launches calls them. They throw DeviceError if the device
    // refuses.
    virtual void queue_signal(uint64_t n) = 0; // signals that everything queued before has ended
    virtual void queue_wait(uint64_t n)   = 0; // holds everything queued behind until open(n)

    // Wait and open on the host's side. Any one thread may call them. await_signal returns when the stream has passed
    // signal n. It throws DeviceError if the device has failed, and Overdue if the deadline has passed.
    virtual void await_signal(uint64_t n) = 0;
    virtual void open(uint64_t n)         = 0;

    // open(n + for_good), with the last n in use, opens the gate for everything that is queued at it, now and later.
    // CUDA compares 32 bits cyclically, so a larger number would count as lower.
    static constexpr uint64_t for_good = uint64_t{1} << 30;

    // Return the low 32 bits of the last signal that the stream has passed, and of the number that is open. They are
    // for messages. Any thread may call them.
    virtual uint32_t signalled() const = 0;
    virtual uint32_t opened() const    = 0;
    // Returns true if the stream has passed signal n. Numbers are compared cyclically.
    bool has_signalled(uint64_t n) const { return static_cast<int32_t>(signalled() - static_cast<uint32_t>(n)) >= 0; }
};

// Returns null if the device cannot wait for the host.
std::unique_ptr<Gate> make_gate(ggml_backend * backend);

// In builds with CUDA. cuda_gate() returns null if the backend is not CUDA's, or if the driver or the card cannot do
// it. Each new gate is tried once. cuda_await() returns true when the event has passed, and false if the stream is not
// CUDA's, if the driver cannot tell, or if it reports an error.
std::unique_ptr<Gate> cuda_gate(ggml_backend * backend);
bool                  cuda_await(ggml_backend * stream, ggml_backend_event * event);

// The time that a thread waits for the device or for the helper before it gives up (set_gate_timeout).
//
// A waiting thread looks at the clock again and again, and one look adds 250 ms at most. So the time in which a process
// was stopped, or the machine slept, does not count as waiting.
class Patience {
  public:
    // The interval of looks for a thread that sleeps while it waits.
    static constexpr std::chrono::milliseconds look = std::chrono::milliseconds(100);

    // Returns true if the wait that began with this object has lasted too long. Call it again and again.
    bool over() {
        const auto now = Clock::now();
        waited_ += std::min<Clock::duration>(now - last_, std::chrono::milliseconds(250));
        last_ = now;
        return limit_ > 0 && std::chrono::duration<double>(waited_).count() > limit_;
    }

  private:
    using Clock = std::chrono::steady_clock;

    const double      limit_  = gate_timeout(); // seconds; 0: no limit
    Clock::time_point last_   = Clock::now();
    Clock::duration   waited_ = Clock::duration::zero();
};

} // namespace spac
