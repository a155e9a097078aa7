// The compute stream of the wrapped device (D in split_stream.h): queues launches and copies on it.
//
// It owns the device's stream, the event that the host waits for, and a share in whatever the launches under way read
// besides their graphs' tensors (masks, slots). What was queued before something that the host has seen over is over
// too: then the shares in it are let go, and the spans of its launches end.
#pragma once

#include "backend/ggml_internals.h"
#include "backend/split_graph.h"
#include "core/trace.h"

#include <cstdint>
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

    // Queues a graph as it is, or those of its nodes: in the time of the model whose block it is queued for.
    ggml_status launch(ggml_cgraph * graph);
    ggml_status launch(const SplitBlock & b, const std::vector<ggml_tensor *> & nodes, const ggml_cgraph * graph);
    // Copies between staging and the device.
    void fetch(const SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes);
    void send(const SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes);

    // Shares in what the launches queued next read.
    void hold(std::shared_ptr<const void> what) { held_.push_back(std::move(what)); }
    // While a trace is on: the next launch is recorded as the device's part of `b`.
    void record_device_part(const SplitBlock & b);

    // A mark behind all that is queued now, one at a time; the wait for it returns how long it took, in nanoseconds.
    void    mark();
    int64_t wait_for_mark();
    void    synchronize();

  private:
    void over(size_t n_held, size_t n_parts); // so many of each, the first ones

    ggml_backend_ptr                         backend_;
    ggml_backend_event_ptr                   event_;
    std::vector<std::shared_ptr<const void>> held_;
    // On a device that does not say when it computes: what was launched and not seen over.
    std::vector<std::pair<std::shared_ptr<Trace>, Span>> parts_;
    size_t                                               held_at_mark_ = 0, parts_at_mark_ = 0;
};

} // namespace spac
