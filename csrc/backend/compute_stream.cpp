#include "backend/compute_stream.h"

#include "backend/model_experts.h"
#include "backend/stand_in.h"
#include "backend/timer.h"
#include "core/error.h"

namespace spac {

ComputeStream::ComputeStream(ggml_backend_dev_t device) : backend_(ggml_backend_dev_init(device, nullptr)) {
    if (!backend_) {
        throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream");
    }
    event_.reset(ggml_backend_event_new(device));
}

ggml_status ComputeStream::launch(ggml_cgraph * graph) { return backend_->iface.graph_compute(backend_.get(), graph); }

ggml_status ComputeStream::launch(const SplitBlock & b, const std::vector<ggml_tensor *> & nodes,
                                  const ggml_cgraph * graph) {
    if (nodes.empty()) {
        return GGML_STATUS_SUCCESS;
    }
    const Timer timer(b.experts->counters.queue_ns);
    ggml_cgraph part = {};
    part.size = part.n_nodes = static_cast<int>(nodes.size());
    part.nodes               = const_cast<ggml_tensor **>(nodes.data()); // read only by every backend
    part.use_counts          = graph->use_counts;
    part.visited_hash_set    = graph->visited_hash_set;
    part.order               = graph->order;
    return launch(&part);
}

void ComputeStream::fetch(const SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes) {
    const Timer timer(b.experts->counters.queue_ns);
    ggml_backend_tensor_get_async(backend_.get(), from, to, 0, bytes);
}

void ComputeStream::send(const SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes) {
    const Timer timer(b.experts->counters.queue_ns);
    ggml_backend_tensor_set_async(backend_.get(), to, from, 0, bytes);
}

void ComputeStream::record_device_part(const SplitBlock & b) {
    if (!b.experts->tracer().on()) {
        return;
    }
    Span span;
    span.activity = Activity::device_part;
    span.layer    = b.layer;
    if (is_stand_in(backend_.get())) {
        span.ok = 1;
        stand_in_record(backend_.get(), b.experts->trace(), span);
    } else {
        span.ok       = 0;
        span.start_ns = Trace::now();
        parts_.emplace_back(b.experts->trace(), span);
    }
}

void ComputeStream::mark() {
    if (event_) {
        ggml_backend_event_record(event_.get(), backend_.get());
    }
    held_at_mark_  = held_.size();
    parts_at_mark_ = parts_.size();
}

int64_t ComputeStream::wait_for_mark() {
    const auto start = Clock::now();
    if (event_) {
        ggml_backend_event_synchronize(event_.get());
    } else {
        ggml_backend_synchronize(backend_.get());
    }
    const auto ns = static_cast<int64_t>(ns_since(start));
    over(held_at_mark_, parts_at_mark_);
    return ns;
}

void ComputeStream::synchronize() {
    ggml_backend_synchronize(backend_.get());
    over(held_.size(), parts_.size());
}

void ComputeStream::over(size_t n_held, size_t n_parts) {
    const auto end_of_parts = parts_.begin() + static_cast<std::ptrdiff_t>(n_parts);
    for (auto part = parts_.begin(); part != end_of_parts; ++part) {
        part->second.end_ns = Trace::now();
        part->first->add(part->second);
    }
    parts_.erase(parts_.begin(), end_of_parts);
    held_.erase(held_.begin(), held_.begin() + static_cast<std::ptrdiff_t>(n_held));
    held_at_mark_ = parts_at_mark_ = 0;
}

} // namespace spac
