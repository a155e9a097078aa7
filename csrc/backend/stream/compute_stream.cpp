#include "backend/stream/compute_stream.h"

#include "backend/device/capabilities.h"
#include "backend/device/kernel_memory.h"
#include "backend/device/timer.h"
#include "backend/experts/model_experts.h"
#include "core/error.h"

#include <algorithm>

namespace spac {

ComputeStream::ComputeStream(ggml_backend_dev_t device)
    : backend_(ggml_backend_dev_init(device, nullptr)), capabilities_(capabilities_of(device)) {
    if (!backend_) {
        throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream");
    }
    event_.reset(ggml_backend_event_new(device));
}

ggml_backend_buffer_ptr ComputeStream::host_buffer(size_t bytes) const {
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device());
    return ggml_backend_buffer_ptr(
        ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), bytes));
}

bool ComputeStream::is_pinned(const ggml_backend_buffer_ptr & buffer) const {
    return buffer && ggml_backend_buffer_get_type(buffer.get()) == ggml_backend_dev_host_buffer_type(device());
}

ggml_status ComputeStream::launch(const Part & part, const ggml_cgraph * graph) {
    return part.nodes.empty() ? GGML_STATUS_SUCCESS : queue(part.nodes, part.uid, part.uses ? *part.uses : *graph);
}

ggml_status ComputeStream::launch(const SplitBlock & b, const Part & part, const ggml_cgraph * graph) {
    const Timer timer(queue_time(b));
    return launch(part, graph);
}

ggml_status ComputeStream::launch(const SplitBlock & b, const std::vector<ggml_tensor *> & nodes,
                                  const ggml_cgraph * graph) {
    const Timer timer(queue_time(b));
    return nodes.empty() ? GGML_STATUS_SUCCESS : queue(nodes, 0, *graph);
}

ggml_status ComputeStream::queue(const std::vector<ggml_tensor *> & nodes, uint64_t uid, const ggml_cgraph & uses) {
    ggml_cgraph part = {};
    part.size = part.n_nodes = static_cast<int>(nodes.size());
    part.nodes               = const_cast<ggml_tensor **>(nodes.data()); // no backend writes to it
    part.uid                 = uid;
    part.use_counts          = uses.use_counts;
    part.visited_hash_set    = uses.visited_hash_set;
    part.order               = uses.order;
    const Computing here(backend_.get());
    return backend_->iface.graph_compute(backend_.get(), &part);
}

std::atomic<uint64_t> & ComputeStream::queue_time(const SplitBlock & b) const {
    return ahead_ ? b.experts->counters.ahead_ns : b.experts->counters.queue_ns;
}

void ComputeStream::fetch(const SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes) {
    const Timer timer(queue_time(b));
    ggml_backend_tensor_get_async(backend_.get(), from, to, 0, bytes);
}

void ComputeStream::send(const SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes) {
    const Timer timer(queue_time(b));
    ggml_backend_tensor_set_async(backend_.get(), to, from, 0, bytes);
}

void ComputeStream::record_device_part(const SplitBlock & b) {
    if (!b.experts->tracer().on()) {
        return;
    }
    Span span;
    span.activity = Activity::device_part;
    span.layer    = b.layer;
    if (StreamExtension * const extension = extension_of(backend_.get())) {
        span.ok = 1;
        extension->record_launch(b.experts->trace(), span);
    } else {
        span.ok       = 0;
        span.start_ns = Trace::now();
        parts_.push_back({n_marks_ + 1, {b.experts->trace(), span}});
    }
}

Gate * ComputeStream::gate() {
    if (!gate_made_) {
        gate_made_ = true;
        gate_      = make_gate(backend_.get());
    }
    return gate_.get();
}

uint64_t ComputeStream::mark() {
    if (event_) {
        ggml_backend_event_record(event_.get(), backend_.get());
    }
    return ++n_marks_;
}

uint64_t ComputeStream::signal() {
    gate_->queue_signal(n_marks_ + 1);
    return ++n_marks_;
}

void ComputeStream::wait_at_gate(uint64_t mark) { gate_->queue_wait(mark); }

int64_t ComputeStream::wait_for_mark() {
    const auto start = Clock::now();
    if (event_) {
        ggml_backend_event_synchronize(event_.get());
    } else {
        ggml_backend_synchronize(backend_.get());
    }
    const auto ns = ns_since(start);
    passed(n_marks_);
    return ns;
}

int64_t ComputeStream::wait_for_signal(uint64_t mark) {
    const auto start = Clock::now();
    gate_->await_signal(mark);
    return ns_since(start);
}

void ComputeStream::synchronize() {
    ggml_backend_synchronize(backend_.get());
    passed(++n_marks_);
}

void ComputeStream::passed(uint64_t mark) {
    last_passed_ = std::max(last_passed_, mark);
    for (; !parts_.empty() && parts_.front().mark <= mark; parts_.pop_front()) {
        auto & [trace, span] = parts_.front().what;
        span.end_ns          = Trace::now();
        trace->add(span);
    }
    while (!held_.empty() && held_.front().mark <= mark) {
        held_.pop_front();
    }
}

} // namespace spac
