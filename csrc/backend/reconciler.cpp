#include "backend/reconciler.h"

#include "backend/model_experts.h"
#include "backend/stand_in.h"
#include "core/error.h"

namespace spac {
namespace {
// Experts copied between two looks at the plan: enough to fill the link, few enough to drop a stale plan soon.
constexpr size_t max_batch = 8;
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
    worker_ = std::thread([this] { work(); });
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
        if (action.kind == SlotTable::Action::use_free && batch.size() < max_batch) {
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
    for (const Load & load : batch) {
        const auto & weights = owner_.layers_[load.id.layer].weights;
        for (size_t w = 0; w < weights.size(); ++w) {
            const ExpertWeight & weight = weights[w];
            const char *         data = static_cast<const char *>(weight.tensor->data) + load.id.expert * weight.bytes;
            ggml_backend_tensor_set_async(stream_.get(), owner_.storage_->tensor(load.pool, static_cast<int>(w)), data,
                                          load.slot * weight.bytes, weight.bytes);
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
