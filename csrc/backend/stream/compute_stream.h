// The compute stream of the wrapped device (D in split_stream.h): queues launches and copies on it.
//
// It owns the device's stream, the event that the host waits for, the gate at which the device waits for the host, and
// a share in whatever the launches under way read besides their graphs' tensors (masks, slots). What was queued before
// a mark that the stream has passed is over: then the shares in it are let go, and the spans of its launches end.
#pragma once

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
    // Throws DeviceError when the device gives no stream.
    explicit ComputeStream(ggml_backend_dev_t device);

    ggml_backend_t             backend() const { return backend_.get(); }
    ggml_backend_dev_t         device() const { return ggml_backend_get_device(backend_.get()); }
    ggml_backend_buffer_type_t buffer_type() const { return ggml_backend_dev_buffer_type(device()); }
    // Whether its kernels compute a token that names an expert twice; GPUs' sort tokens by experts.
    bool computes_repeats() const;
    // Host memory that copies are asynchronous from: pinned where the device can.
    ggml_backend_buffer_ptr host_buffer(size_t bytes) const;
    // Whether it is pinned. A driver that pins no more gives pageable memory, and that is read when a copy is queued.
    bool is_pinned(const ggml_backend_buffer_ptr & buffer) const;

    // Queues nodes, some of them of that graph: in the time of the model whose block they are queued for.
    ggml_status launch(const Part & part, const ggml_cgraph * graph);
    ggml_status launch(const SplitBlock & b, const Part & part, const ggml_cgraph * graph);
    ggml_status launch(const SplitBlock & b, const std::vector<ggml_tensor *> & nodes, const ggml_cgraph * graph);
    // Copies between staging and the device.
    void fetch(const SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes);
    void send(const SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes);

    // Shares in what the launches queued next read.
    void hold(std::shared_ptr<const void> what) { held_.push_back({n_marks_ + 1, std::move(what)}); }
    // While a trace is on: the next launch is recorded as the device's part of `b`.
    void record_device_part(const SplitBlock & b);
    // A span that ends when what is queued now is seen over.
    void record_until_over(std::shared_ptr<Trace> trace, const Span & span) {
        parts_.push_back({n_marks_ + 1, {std::move(trace), span}});
    }

    // Whether what is queued next is queued beside the thread that decodes: whose time it is.
    void set_ahead(bool ahead) { ahead_ = ahead; }

    // The gate, made when it is first asked for; null where the device cannot wait for the host.
    Gate * gate();
    // Queues the wait at it for a signal's mark to be opened.
    void wait_at_gate(uint64_t mark);
    // For good, once nothing is queued at it any more.
    void drop_gate() { gate_.reset(); }

    // A mark behind all that is queued now; marks are numbered. The host learns of it from the event (of the last mark
    // alone), or of a signal's from the gate.
    uint64_t mark();
    uint64_t signal();
    uint64_t next_mark() const { return n_marks_ + 1; }
    bool     has_passed(uint64_t mark) const { return mark <= last_passed_; }
    // Waits for the last mark; returns how long, in nanoseconds.
    int64_t wait_for_mark();
    // Waits for a signal's mark, on any thread; passed() is to follow on the one that launches. Throws as
    // Gate::await_signal does.
    int64_t wait_for_signal(uint64_t mark);
    void    passed(uint64_t mark);
    void    synchronize();

  private:
    template <typename What> struct Behind { // what lies before a mark, and goes with it
        uint64_t mark;
        What     what;
    };

    ggml_status             queue(const std::vector<ggml_tensor *> & nodes, uint64_t uid, const ggml_cgraph & uses);
    std::atomic<uint64_t> & queue_time(const SplitBlock & b) const;

    ggml_backend_ptr                                backend_;
    ggml_backend_event_ptr                          event_;
    std::unique_ptr<Gate>                           gate_;
    bool                                            gate_made_   = false;
    bool                                            ahead_       = false;
    uint64_t                                        n_marks_     = 0;
    uint64_t                                        last_passed_ = 0;
    std::deque<Behind<std::shared_ptr<const void>>> held_;
    // On a device that does not say when it computes: what was launched and not seen over.
    std::deque<Behind<std::pair<std::shared_ptr<Trace>, Span>>> parts_;
};

} // namespace spac
