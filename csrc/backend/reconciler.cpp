#include "backend/reconciler.h"

#include "backend/model_experts.h"
#include "backend/stand_in.h"
#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace spac {
namespace {
// Experts copied between two looks at the plan: enough to fill the link, few enough to drop a stale plan soon.
constexpr size_t max_batch = 8;
// Pinned memory for experts on their way; fewer go in a batch where experts are large.
constexpr size_t max_ring_bytes = size_t{128} << 20;
// Slots that may be waiting for their last launch at once: evicting earlier than needed costs hits.
constexpr size_t max_evictions = 8;

// A plan wakes the worker at the end of a step, when the thread that decodes goes on: a batch thread does not take its
// core from it.
void yield_to_decoding() {
#if defined(SCHED_BATCH)
    const sched_param param = {};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &param); // where it is refused, nothing is lost
#endif
}
} // namespace

Reconciler::Reconciler(ModelExperts & experts, ggml_backend_dev_t device)
    : owner_(experts), stream_(ggml_backend_dev_init(device, nullptr)) {
    if (!stream_) {
        throw DeviceError(std::string("device ") + ggml_backend_dev_name(device) + " gave no stream for copies");
    }
    if (is_stand_in(stream_.get())) {
        stand_in_mark_uploads(stream_.get());
    }
    make_ring();
    worker_ = std::thread([this] { work(); });
}

void Reconciler::make_ring() {
    batch_size_ = max_batch;
    auto * type = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(stream_.get()));
    if (owner_.memory_ != ModelExperts::HostMemory::pageable || type == nullptr) {
        return;
    }
    size_t largest = 1;
    for (const auto & layer : owner_.layers_) {
        largest = std::max(largest, layer.info.expert_bytes);
    }
    batch_size_ = std::clamp<size_t>(max_ring_bytes / largest, 1, max_batch);
    ring_.reset(ggml_backend_buft_alloc_buffer(type, batch_size_ * largest)); // without it, copies are merely slower
}

Reconciler::~Reconciler() {
    {
        const std::lock_guard lock(owner_.mutex_);
        stop_ = true;
    }
    owner_.residency_->returns()->wake();
    worker_.join();
}

void Reconciler::work() {
    yield_to_decoding();
    Residency & residency = *owner_.residency_; // as long as this thread: the owner joins it first
    const auto  returns   = residency.returns();
    while (true) {
        const uint64_t               ticket = returns->ticket();
        Residency::Retired           retired; // dies outside the mutex
        std::vector<Residency::Load> loads;
        {
            const std::lock_guard lock(owner_.mutex_);
            if (stop_) {
                return;
            }
            loads = residency.begin(owner_.cursor_.load(), batch_size_, max_evictions, retired);
            record(residency.evictions());
            if (residency.settled()) {
                owner_.settled_.notify_all();
            }
        }
        owner_.counters.evictions += retired.size();
        const bool evicted = !retired.empty();
        retired.clear();
        if (!loads.empty()) {
            const int64_t start  = Trace::now();
            const bool    copied = copy(loads);
            count(loads, copied, start);
            const std::lock_guard lock(owner_.mutex_);
            if (copied) {
                owner_.demand.note_loaded(loads);
            }
            residency.finish(loads, copied, retired);
        } else if (!evicted) {
            returns->wait_past(ticket);
        }
    }
}

void Reconciler::record(const std::vector<Residency::Eviction> & evictions) {
    if (evictions.empty()) {
        return;
    }
    owner_.demand.note_evicted(evictions);
    Span span;
    span.activity = Activity::evict;
    span.start_ns = span.end_ns = Trace::now();
    for (const Residency::Eviction & eviction : evictions) {
        span.layer  = eviction.id.layer;
        span.expert = eviction.id.expert;
        span.pool   = eviction.pool;
        owner_.trace_->add(span);
    }
}

void Reconciler::count(const std::vector<Residency::Load> & loads, bool copied, int64_t start) {
    Span span;
    span.activity = Activity::copy;
    span.start_ns = start;
    span.end_ns   = Trace::now();
    span.ok       = copied ? 1 : 0;
    owner_.counters.upload_ns += static_cast<uint64_t>(span.end_ns - start);
    for (const Residency::Load & load : loads) {
        const size_t bytes = owner_.layers_[load.id.layer].info.expert_bytes;
        if (copied) {
            ++owner_.counters.uploads;
            owner_.counters.upload_bytes += bytes;
        } else {
            ++owner_.counters.upload_failures;
        }
        span.layer  = load.id.layer;
        span.expert = load.id.expert;
        span.pool   = load.pool;
        span.bytes  = static_cast<int64_t>(bytes);
        owner_.trace_->add(span);
    }
}

bool Reconciler::copy(const std::vector<Residency::Load> & loads) {
    // a batch fits into the ring, and the stream is waited for before the next one
    char * staged = ring_ ? static_cast<char *>(ggml_backend_buffer_get_base(ring_.get())) : nullptr;
    for (const Residency::Load & load : loads) {
        const auto & weights = owner_.layers_[load.id.layer].weights;
        for (size_t w = 0; w < weights.size(); ++w) {
            const size_t bytes = weights[w].bytes;
            const char * data  = static_cast<const char *>(weights[w].tensor->data) + load.id.expert * bytes;
            if (staged != nullptr) {
                memcpy(staged, data, bytes);
                data = std::exchange(staged, staged + bytes);
            }
            ggml_tensor * slots = owner_.storage_->tensor(load.pool, static_cast<int>(w));
            ggml_backend_tensor_set_async(stream_.get(), slots, data, load.slot * bytes, bytes);
        }
    }
    ggml_backend_synchronize(stream_.get());
    return !(is_stand_in(stream_.get()) && stand_in_take_failure(stream_.get()));
}

} // namespace spac
