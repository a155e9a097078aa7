#include "backend/experts/demand.h"

#include <algorithm>
#include <limits>

namespace spac {

void DemandCounter::set_counting(bool counting) {
    const std::lock_guard lock(mutex_);
    counting_ = counting;
}

void DemandCounter::set_step_tokens(int n_max) {
    const std::lock_guard lock(mutex_);
    step_tokens_ = n_max;
}

bool DemandCounter::counts(int n_used, int n_tokens, int n_expert) const {
    const std::lock_guard lock(mutex_);
    // llama.cpp's warm-up uses all experts at once, which is no demand
    return counting_ && n_tokens <= step_tokens_ && (n_used < n_expert || n_expert == 1);
}

DemandCounter::Layer & DemandCounter::at(int il) {
    if (static_cast<size_t>(il) >= layers_.size()) {
        layers_.resize(il + 1);
    }
    return layers_[il];
}

// ---- the execution side

void DemandCounter::count(int il, const int32_t * ids, size_t stride, int n_used, int n_tokens, int n_expert,
                          const Mask * mask) {
    const std::lock_guard lock(mutex_);
    Layer &               layer = at(il);
    layer.demand.resize(n_expert, 0);
    layer.n_tokens = n_tokens;
    layer.n_used   = n_used;
    layer.routes.resize(std::max(layer.routes.size(), static_cast<size_t>(n_tokens) * n_used));
    seen_.assign(n_expert, 0);
    hit_.assign(n_expert, 0);
    int32_t * route = layer.routes.data();
    for (int t = 0; t < n_tokens; ++t) {
        const auto * token = reinterpret_cast<const int32_t *>(reinterpret_cast<const char *>(ids) + t * stride);
        route              = std::copy_n(token, n_used, route);
        for (int u = 0; u < n_used; ++u) {
            const int32_t e        = token[u];
            const bool    resident = mask != nullptr && mask->slot_of[e] >= 0;
            ++layer.demand[e];
            ++(resident ? layer.cost.device_activations : layer.cost.host_activations);
            (resident ? layer.cost.device_distinct : layer.cost.host_distinct) += !seen_[e];
            ++activations_;
            activations_hit_ += resident;
            distinct_ += !seen_[e];
            distinct_hit_ += !seen_[e] && resident;
            seen_[e] = 1;
            hit_[e]  = static_cast<char>(resident);
        }
    }
    // without a mask nothing is resident, so every eviction is older
    churn_.executed(il, mask != nullptr ? mask->version : std::numeric_limits<uint64_t>::max(), seen_, hit_);
}

void DemandCounter::add_times(int il, int64_t wait_ns, int64_t host_ns) {
    const std::lock_guard lock(mutex_);
    LayerCost &           cost = at(il).cost;
    cost.wait_ns += wait_ns;
    cost.host_ns += host_ns;
}

void DemandCounter::end_step() {
    const std::lock_guard lock(mutex_);
    ++n_steps_;
}

void DemandCounter::raise_layer(int il) {
    if (!listens()) {
        return;
    }
    std::shared_ptr<const Experts::LayerListener> listener;
    std::vector<int32_t>                          demand;
    {
        const std::lock_guard lock(mutex_);
        listener = listener_;
        demand   = at(il).demand;
    }
    if (listener) {
        (*listener)(il, demand);
    }
}

// ---- for the reconciler

void DemandCounter::note_loaded(const std::vector<Residency::Load> & loads) {
    const std::lock_guard lock(mutex_);
    for (const Residency::Load & load : loads) {
        churn_.loaded(load.id);
    }
}

void DemandCounter::note_evicted(const std::vector<Residency::Eviction> & evictions) {
    const std::lock_guard lock(mutex_);
    for (const Residency::Eviction & eviction : evictions) {
        churn_.evicted(eviction.id, eviction.version);
    }
}

// ---- for the policy

int DemandCounter::take(int32_t * demand, int n_layer, int n_expert) {
    const std::lock_guard lock(mutex_);
    std::fill_n(demand, static_cast<size_t>(n_layer) * n_expert, 0);
    for (size_t il = 0; il < layers_.size() && il < static_cast<size_t>(n_layer); ++il) {
        std::vector<int32_t> & row = layers_[il].demand;
        std::copy(row.begin(), row.end(), demand + il * n_expert);
        std::fill(row.begin(), row.end(), 0);
    }
    return std::exchange(n_steps_, 0);
}

void DemandCounter::take_layer_costs(LayerCost * costs, int n_layer) {
    const std::lock_guard lock(mutex_);
    for (int il = 0; il < n_layer; ++il) {
        costs[il] = std::exchange(at(il).cost, {});
    }
}

std::pair<int, int> DemandCounter::routes(std::vector<int32_t> & ids, int n_layer) const {
    const std::lock_guard lock(mutex_);
    int                   n_tokens = 0, n_used = 0;
    for (const Layer & layer : layers_) {
        n_tokens = std::max(n_tokens, layer.n_tokens);
        n_used   = std::max(n_used, layer.n_used);
    }
    ids.assign(static_cast<size_t>(n_layer) * n_tokens * n_used, -1);
    for (size_t il = 0; il < layers_.size() && il < static_cast<size_t>(n_layer); ++il) {
        const int32_t * from = layers_[il].routes.data();
        int32_t *       to   = ids.data() + il * n_tokens * n_used;
        for (int t = 0; t < layers_[il].n_tokens; ++t, from += layers_[il].n_used, to += n_used) {
            std::copy_n(from, layers_[il].n_used, to);
        }
    }
    return {n_tokens, n_used};
}

void DemandCounter::set_listener(Experts::LayerListener listener) {
    const std::lock_guard lock(mutex_);
    listens_  = listener != nullptr;
    listener_ = listens_ ? std::make_shared<const Experts::LayerListener>(std::move(listener)) : nullptr;
}

void DemandCounter::add_to(ExpertStats & stats) const {
    const std::lock_guard lock(mutex_);
    stats.activations     = activations_;
    stats.activations_hit = activations_hit_;
    stats.distinct        = distinct_;
    stats.distinct_hit    = distinct_hit_;
    stats.uploads_wasted  = churn_.n_wasted();
    stats.evictions_early = churn_.n_early();
}

} // namespace spac
