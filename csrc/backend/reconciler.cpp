#include "backend/reconciler.h"

#include "backend/model_experts.h"
#include "backend/stand_in.h"
#include "core/error.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace spac {
namespace {
// Experts copied between two looks at the plan: enough to fill the link, few enough to drop a stale plan soon.
constexpr size_t max_batch = 8;
// Pinned memory for experts on their way; fewer go in a batch where experts are large.
constexpr size_t max_ring_bytes = size_t{128} << 20;
// Slots that may be waiting for their last launch at once: evicting earlier than needed costs hits.
constexpr size_t max_evictions = 8;
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
    owner_.returns_->wake();
    worker_.join();
}

void Reconciler::work() {
    SlotReturns & returns = *owner_.returns_;
    while (true) {
        const uint64_t                           ticket = returns.ticket();
        std::vector<std::shared_ptr<const Mask>> retired;
        std::vector<Load>                        batch;
        {
            const std::lock_guard lock(owner_.mutex_);
            if (stop_) {
                return;
            }
            for (const auto & [pool, slot] : returns.take()) {
                owner_.table_->release(pool, slot);
            }
            batch = next_batch_locked(retired);
            if (idle_) {
                owner_.settled_.notify_all();
            }
        }
        const bool evicted = !retired.empty();
        retired.clear();
        if (!batch.empty()) {
            const bool copied = copy(batch);
            {
                const std::lock_guard lock(owner_.mutex_);
                publish_locked(batch, copied, retired);
            }
            retired.clear();
        } else if (!evicted) {
            returns.wait_past(ticket);
        }
    }
}

std::vector<Reconciler::Load> Reconciler::next_batch_locked(std::vector<std::shared_ptr<const Mask>> & retired) {
    std::vector<Load> batch;
    if (owner_.plan_version_ == 0) {
        idle_ = true;
        return batch;
    }
    const auto actions = owner_.table_->toward(owner_.plan_, owner_.cursor_.load(), owner_.skip_);
    idle_              = actions.empty();
    for (const SlotTable::Action & action : actions) {
        if (action.kind == SlotTable::Action::use_free && batch.size() < batch_size_) {
            const int slot = owner_.table_->acquire(action.load);
            batch.push_back({action.load, owner_.table_->pool_of(action.load.layer), slot});
        } else if (action.kind == SlotTable::Action::use_evicted && retired.size() < max_evictions) {
            owner_.table_->evict(action.evict);
            retired.push_back(owner_.publish_locked(action.evict.layer, action.evict.expert, -1));
            ++owner_.counters.evictions;
        }
    }
    return batch;
}

bool Reconciler::copy(const std::vector<Load> & batch) {
    // a batch fits into the ring, and the stream is waited for before the next one
    char * staged = ring_ ? static_cast<char *>(ggml_backend_buffer_get_base(ring_.get())) : nullptr;
    for (const Load & load : batch) {
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

void Reconciler::publish_locked(const std::vector<Load> & batch, bool copied,
                                std::vector<std::shared_ptr<const Mask>> & retired) {
    for (const Load & load : batch) {
        if (copied) {
            retired.push_back(owner_.publish_locked(load.id.layer, load.id.expert, load.slot));
            ++owner_.counters.uploads;
            owner_.counters.upload_bytes += owner_.layers_[load.id.layer].info.expert_bytes;
        } else {
            owner_.table_->evict(load.id);
            owner_.table_->release(load.pool, load.slot);
            owner_.skip_[load.id.layer][load.id.expert] = 1;
            ++owner_.counters.upload_failures;
        }
    }
}

} // namespace spac
