#include "backend/experts/reconciler.h"

#include "backend/device/capabilities.h"
#include "backend/device/settings.h"
#include "backend/experts/expert_store.h"
#include "backend/experts/model_experts.h"
#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace spac {
namespace {
// Most experts in a batch of copies, and the time from which on a batch has no further expert. A batch is short, so
// that a stale plan is dropped soon, and what is foreseen waits for few copies. While one batch is copied, the next is
// chosen and queued, so that the link always has work.
constexpr size_t  max_batch = 4;
constexpr int64_t batch_ns  = 100'000;
// Most bytes of pinned memory for experts under way. If experts are large, a batch has fewer of them.
constexpr size_t max_ring_bytes = size_t{128} << 20;
// Most slots that wait for their last launch at once. Evicting earlier than needed costs hits.
constexpr size_t max_evictions = 8;

// Threads that fill the ring where nobody has said how many. More would take cores from the CPU's experts.
constexpr int measured_threads = 2;

const char * expert_data(const ExpertWeight & weight, int expert) {
    return static_cast<const char *>(weight.tensor->data) + expert * weight.bytes;
}

// Makes the worker a batch thread, so that it does not take the core of the thread that decodes. A plan wakes the
// worker at the end of a step, when that thread goes on.
void yield_to_decoding() {
#if defined(SCHED_BATCH)
    const sched_param param = {};
    pthread_setschedparam(pthread_self(), SCHED_BATCH, &param); // a refusal does no harm
#endif
}
} // namespace

Reconciler::Reconciler(ModelExperts & experts, ExpertsPart & part)
    : owner_(experts), part_(part), stream_(ggml_backend_dev_init(part.device, nullptr)),
      staging_(upload_threads() < 0 ? measured_threads : upload_threads()) {
    if (!stream_) {
        throw DeviceError(std::string("device ") + ggml_backend_dev_name(part.device) + " gave no stream for copies");
    }
    if (StreamExtension * const extension = extension_of(stream_.get())) {
        extension->mark_uploads();
    }
    n_batches_ = 2;
    for (size_t place = 0; place < n_batches_; ++place) {
        ends_.emplace_back(ggml_backend_event_new(part.device));
    }
    n_batches_ = ends_.back() ? n_batches_ : 1;
    make_ring();
    worker_ = std::thread([this] { work(); });
}

void Reconciler::make_ring() {
    batch_size_          = max_batch;
    auto *       type    = ggml_backend_dev_host_buffer_type(ggml_backend_get_device(stream_.get()));
    const size_t largest = most_pageable();
    if (largest == 0 || type == nullptr) {
        return;
    }
    batch_size_ = std::clamp<size_t>(max_ring_bytes / (n_batches_ * largest), 1, max_batch);
    // if this fails, copies are only slower
    ring_.reset(ggml_backend_buft_alloc_buffer(type, n_batches_ * batch_size_ * largest));
}

// Returns the largest number of unpinned bytes of an expert of the device's layers.
size_t Reconciler::most_pageable() const {
    size_t most = 0;
    for (const auto & layer : owner_.layers_) {
        for (int e = 0; layer.device == part_.device && e < layer.info.n_expert; ++e) {
            size_t bytes = layer.info.expert_bytes;
            for (const ExpertWeight & weight : layer.weights) {
                bytes -= owner_.pinned.pinned_bytes(expert_data(weight, e), weight.bytes);
            }
            most = std::max(most, bytes);
        }
    }
    return most;
}

Reconciler::~Reconciler() {
    {
        const std::lock_guard lock(owner_.mutex_);
        stop_ = true;
    }
    part_.residency->returns()->wake();
    worker_.join();
}

void Reconciler::work() {
    yield_to_decoding();
    Residency & residency = *part_.residency; // outlives this thread, which the owner joins first
    const auto  returns   = residency.returns();
    while (true) {
        const uint64_t               ticket = returns->ticket();
        Residency::Retired           retired; // freed outside the mutex
        std::vector<Residency::Load> loads;
        std::shared_ptr<const Plan>  plan;
        std::unique_lock             driving(part_.driving); // no miss changes the slots during a round
        {
            const std::lock_guard lock(owner_.mutex_);
            if (stop_) {
                break;
            }
            plan = residency.look();
        }
        take_hints(residency);
        const size_t n_loads = std::clamp<size_t>(batch_ns / std::max<int64_t>(expert_ns_, 1), 1, batch_size_);
        const auto   actions =
            residency.choose(*plan, owner_.cursor_.load(), {n_loads, max_evictions}, timely(residency.foreseen()));
        {
            const std::lock_guard lock(owner_.mutex_); // short: the thread that decodes takes it in every layer
            loads = residency.begin(actions, retired);
            owner_.note_evictions_locked(part_);
            if (residency.settled()) {
                owner_.settled_.notify_all();
            }
        }
        driving.unlock();
        const bool idle = loads.empty() && retired.empty();
        retired.clear();
        if (!loads.empty()) {
            start(std::move(loads));
        }
        if (!under_way_.empty() && (idle || under_way_.size() == n_batches_)) {
            finish_oldest(residency);
        } else if (idle) {
            returns->wait_past(ticket);
        }
    }
    ggml_backend_synchronize(stream_.get());
}

// Takes the hints for layers since the last call. The layers that run next come first.
void Reconciler::take_hints(Residency & residency) {
    std::map<int, Hint> hints;
    bool                forget = false;
    {
        const std::lock_guard lock(hints_mutex_);
        hints.swap(hints_);
        std::swap(forget, forget_);
    }
    if (forget) {
        residency.forget();
    }
    const auto say = [&](auto & word) {
        const auto & [layer, what] = word;
        what.ran ? residency.note_used(layer, what.experts) : residency.foresee(layer, what.experts);
    };
    const auto next = hints.lower_bound(owner_.cursor_.load());
    std::for_each(next, hints.end(), say);
    std::for_each(hints.begin(), next, say);
}

// Returns the experts that arrive before the mask of their layer is chosen, if they are copied one after the other. The
// others would only delay these.
std::vector<ExpertId> Reconciler::timely(std::vector<ExpertId> foreseen) const {
    const int64_t layer_ns = owner_.lookahead.layer_ns();
    const int     cursor = owner_.cursor_.load(), n_layer = part_.residency->table().n_layer();
    int64_t       arrival = 0;
    for (const Batch & batch : under_way_) {
        arrival += static_cast<int64_t>(batch.loads.size()) * expert_ns_;
    }
    const auto late = [&](ExpertId id) {
        const int64_t until = (2 * ((id.layer - cursor + n_layer) % n_layer) + 1) * layer_ns / 2; // half of this layer
        if (layer_ns > 0 && arrival + expert_ns_ > until) {
            return true;
        }
        arrival += expert_ns_;
        return false;
    };
    foreseen.erase(std::remove_if(foreseen.begin(), foreseen.end(), late), foreseen.end());
    return foreseen;
}

void Reconciler::foresee(int layer, std::vector<int32_t> experts, bool wake) {
    {
        const std::lock_guard lock(hints_mutex_);
        hints_[layer] = {false, std::move(experts)};
    }
    if (wake) {
        part_.residency->returns()->wake();
    }
}

void Reconciler::note_used(int layer, std::vector<int32_t> experts) {
    const std::lock_guard lock(hints_mutex_);
    hints_[layer] = {true, std::move(experts)};
}

void Reconciler::forget() {
    const std::lock_guard lock(hints_mutex_);
    hints_.clear();
    forget_ = true;
}

// Queues the copies of a batch, through the ring where the source is pageable.
void Reconciler::start(std::vector<Residency::Load> loads) {
    const size_t place = n_started_++ % n_batches_;
    under_way_.push_back({std::move(loads), Trace::now(), place});
    char * staged = ring_ ? static_cast<char *>(ggml_backend_buffer_get_base(ring_.get())) +
                                place * (ggml_backend_buffer_get_size(ring_.get()) / n_batches_)
                          : nullptr;
    for (const Residency::Load & load : under_way_.back().loads) {
        const auto & weights = owner_.layers_[load.id.layer].weights;
        for (size_t w = 0; w < weights.size(); ++w) {
            const size_t  bytes = weights[w].bytes;
            const char *  data  = expert_data(weights[w], load.id.expert);
            ggml_tensor * slots = part_.storage->tensor(load.pool, static_cast<int>(w));
            for (const auto & slice : owner_.pinned.slices(data, bytes)) {
                const char * from = data + slice.offset;
                if (!slice.pinned && staged != nullptr) {
                    staging_.copy(staged, from, slice.bytes);
                    from = std::exchange(staged, staged + slice.bytes);
                }
                ggml_backend_tensor_set_async(stream_.get(), slots, from, load.slot * bytes + slice.offset,
                                              slice.bytes);
            }
        }
    }
    if (ends_[place]) {
        ggml_backend_event_record(ends_[place].get(), stream_.get());
    }
}

// Waits for the oldest batch, and publishes its experts.
void Reconciler::finish_oldest(Residency & residency) {
    const size_t place = under_way_.front().place;
    if (ends_[place]) {
        await_event(stream_.get(), ends_[place].get());
    } else {
        ggml_backend_synchronize(stream_.get());
    }
    const bool copied = !has_failed();
    // it is unknown which copy failed, so all batches under way count as failed
    for (size_t n = copied ? 1 : under_way_.size(); n > 0; --n) {
        const Batch batch = std::move(under_way_.front());
        under_way_.pop_front();
        count(batch, copied);
        if (copied && owner_.paged()) {
            advise_copied(batch);
        }
        Residency::Retired    retired; // freed outside the mutex
        const std::lock_guard driving(part_.driving);
        const std::lock_guard lock(owner_.mutex_);
        if (copied) {
            owner_.demand.note_loaded(batch.loads);
        }
        residency.finish(batch.loads, copied, retired);
    }
}

// Returns true if a copy has failed since the last call. Then no copy is under way when it returns.
bool Reconciler::has_failed() {
    StreamExtension * const extension = extension_of(stream_.get());
    if (extension == nullptr || !extension->take_failure()) {
        return false; // ggml's devices end the process if a copy fails
    }
    ggml_backend_synchronize(stream_.get());
    extension->take_failure();
    return true;
}

// Lets the system drop the pages of experts that the device has now, before those that the CPU computes. An expert that
// leaves its slot is then read from the page cache or from the file.
void Reconciler::advise_copied(const Batch & batch) const {
    for (const Residency::Load & load : batch.loads) {
        for (const auto & weight : owner_.layers_[load.id.layer].weights) {
            const auto begin = reinterpret_cast<uintptr_t>(expert_data(weight, load.id.expert));
            advise({begin, begin + weight.bytes}, MADV_COLD);
        }
    }
}

void Reconciler::count(const Batch & batch, bool copied) {
    Span span;
    span.activity = Activity::copy;
    span.start_ns = std::max(batch.start_ns, last_end_ns_); // copies run one after the other
    span.end_ns = last_end_ns_ = Trace::now();
    span.ok                    = copied ? 1 : 0;
    owner_.counters.upload_ns += static_cast<uint64_t>(span.end_ns - span.start_ns);
    part_.upload_ns += static_cast<uint64_t>(span.end_ns - span.start_ns);
    const int64_t each = (span.end_ns - span.start_ns) / static_cast<int64_t>(batch.loads.size());
    expert_ns_         = expert_ns_ == 0 ? each : expert_ns_ + (each - expert_ns_) / 8;
    for (const Residency::Load & load : batch.loads) {
        const size_t bytes = owner_.layers_[load.id.layer].info.expert_bytes;
        if (copied) {
            ++owner_.counters.uploads;
            owner_.counters.upload_bytes += bytes;
            ++part_.uploads;
            part_.upload_bytes += bytes;
        } else {
            ++owner_.counters.upload_failures;
            ++part_.upload_failures;
        }
        span.layer  = load.id.layer;
        span.expert = load.id.expert;
        span.pool   = load.pool;
        span.bytes  = static_cast<int64_t>(bytes);
        owner_.trace_->add(span);
    }
}

} // namespace spac
