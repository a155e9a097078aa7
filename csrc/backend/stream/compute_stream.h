// The compute stream of the wrapped device (D in split_stream.h), on which launches and copies are queued.
//
// It owns the device's stream, the event that the host waits for, and the gate at which the device waits for the host.
// It also holds shared pointers to everything that the launches under way read besides their graphs' tensors (masks,
// slots). When the stream has passed a mark, all that was queued before it has ended. Then these pointers are dropped,
// and the spans of the launches end.
#pragma once

#include "backend/device/capabilities.h"
#include "backend/device/ggml_internals.h"
#include "backend/device/stream_gate.h"
#include "backend/graph/split_graph.h"
#include "core/trace.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class ComputeStream {
  public:
    // Throws DeviceError if the device gives no stream.
    explicit ComputeStream(ggml_backend_dev_t device);

    ggml_backend_t             backend() const { return backend_.get(); }
    const Capabilities &       capabilities() const { return capabilities_; }
    ggml_backend_dev_t         device() const { return ggml_backend_get_device(backend_.get()); }
    ggml_backend_buffer_type_t buffer_type() const { return ggml_backend_dev_buffer_type(device()); }
    // Allocates host memory from which copies are asynchronous: pinned if the device can.
    ggml_backend_buffer_ptr host_buffer(size_t bytes) const;
    // Returns true if the buffer is pinned. A driver that cannot pin more gives pageable memory, from which a copy
    // reads when it is queued.
    bool is_pinned(const ggml_backend_buffer_ptr & buffer) const;

    // Queue nodes, some of which belong to the graph. With a block, the time is counted for the block's model.
    ggml_status launch(const Part & part, const ggml_cgraph * graph);
    ggml_status launch(const SplitBlock & b, const Part & part, const ggml_cgraph * graph);
    ggml_status launch(const SplitBlock & b, const std::vector<ggml_tensor *> & nodes, const ggml_cgraph * graph);
    // Queue copies between staging and the device.
    void fetch(const SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes);
    void send(const SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes);

    // Holds memory that the launches queued next read.
    void hold(std::shared_ptr<const void> what) { held_.push_back({n_marks_ + 1, std::move(what)}); }
    // Records the next launch as the device's part of `b`, while a trace is on.
    void record_device_part(const SplitBlock & b);
    // Adds a span that ends when the host notices the end of everything queued until now.
    void record_until_over(std::shared_ptr<Trace> trace, const Span & span) {
        parts_.push_back({n_marks_ + 1, {std::move(trace), span}});
    }

    // Sets the counter for the time of the next calls that queue. `ahead` means the helper's thread, beside the thread
    // that decodes.
    void set_ahead(bool ahead) { ahead_ = ahead; }

    // Returns the gate, which the first call makes. It is null if the device cannot wait for the host.
    Gate * gate();
    // Queues a wait at the gate until a signal's mark is opened.
    void wait_at_gate(uint64_t mark);
    // Frees the gate for good. Nothing may be queued at it any more.
    void drop_gate() { gate_.reset(); }

    // Queue a numbered mark behind all that is queued now. The host waits for mark() by the event (for the last mark
    // only), and for signal() by the gate.
    uint64_t mark();
    uint64_t signal();
    uint64_t next_mark() const { return n_marks_ + 1; }
    bool     has_passed(uint64_t mark) const { return mark <= last_passed_; }
    // Waits for the last mark. Returns the time of the wait in nanoseconds.
    int64_t wait_for_mark();
    // Waits for a signal's mark, on any thread, and returns the time in nanoseconds. The thread that launches has to
    // call passed() afterwards. Throws as Gate::await_signal does.
    int64_t wait_for_signal(uint64_t mark);
    void    passed(uint64_t mark);
    void    synchronize();

  private:
    template <typename What> struct Behind { // a thing that is kept until a mark has passed
        uint64_t mark;
        What     what;
    };

    ggml_status             queue(const std::vector<ggml_tensor *> & nodes, uint64_t uid, const ggml_cgraph & uses);
    std::atomic<uint64_t> & queue_time(const SplitBlock & b) const;

    ggml_backend_ptr                                backend_;
    Capabilities                                    capabilities_;
    ggml_backend_event_ptr                          event_;
    std::unique_ptr<Gate>                           gate_;
    bool                                            gate_made_   = false;
    bool                                            ahead_       = false;
    uint64_t                                        n_marks_     = 0;
    uint64_t                                        last_passed_ = 0;
    std::deque<Behind<std::shared_ptr<const void>>> held_;
    // Launches whose end was not noticed yet, on a device that does not record when it computes.
    std::deque<Behind<std::pair<std::shared_ptr<Trace>, Span>>> parts_;
};

} // namespace spac
