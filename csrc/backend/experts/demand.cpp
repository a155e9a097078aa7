#include "backend/experts/demand.h"

#include <algorithm>
#include <utility>

namespace spac {

void DemandCounter::set_counting(bool counting) {
    const std::lock_guard lock(mutex_);
    counting_ = counting;
}

void DemandCounter::set_step_tokens(int n_max) {
    const std::lock_guard lock(mutex_);
    step_tokens_ = n_max;
}

void DemandCounter::set_tail_tokens(int n_tokens) {
    const std::lock_guard lock(mutex_);
    tail_tokens_ = n_tokens;
    for (Layer & layer : layers_) {
        layer.n_tokens = n_tokens > 0 ? 0 : layer.n_tokens;
    }
}

void DemandCounter::set_parts(const std::vector<int> & n_tokens) {
    const std::lock_guard lock(mutex_);
    parts_.assign(n_tokens.size(), ExpertCounts{});
    part_of_row_.clear();
    for (size_t part = 0; part < n_tokens.size(); ++part) {
        part_of_row_.insert(part_of_row_.end(), n_tokens[part], static_cast<int>(part));
    }
    for (Layer & layer : layers_) {
        layer.n_parted = 0;
    }
}

std::vector<ExpertCounts> DemandCounter::take_parts() {
    const std::lock_guard lock(mutex_);
    part_of_row_.clear();
    return std::exchange(parts_, {});
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
                          const Mask * mask, const Mask * resident) {
    const std::lock_guard lock(mutex_);
    Layer &               layer = at(il);
    layer.demand.resize(n_expert, 0);
    note_routes(layer, ids, stride, n_used, n_tokens);
    seen_.assign(n_expert, 0);
    for (int t = 0; t < n_tokens; ++t) {
        const int32_t * token = layer.routes.data() + static_cast<size_t>(t) * n_used;
        for (int u = 0; u < n_used; ++u) {
            const int32_t e         = token[u];
            const bool    on_device = mask != nullptr && mask->slot_of[e] >= 0;
            const bool    hit       = resident != nullptr && resident->slot_of[e] >= 0;
            const bool    first     = !seen_[e];
            ++layer.demand[e];
            ++(on_device ? layer.cost.device_activations : layer.cost.host_activations);
            (on_device ? layer.cost.device_distinct : layer.cost.host_distinct) += first;
            layer.cost.loaded_distinct += first && on_device && !hit;
            ++activations_;
            ++layer.activations;
            activations_hit_ += hit;
            layer.activations_hit += hit;
            activations_loaded_ += on_device && !hit;
            distinct_ += first;
            distinct_hit_ += first && hit;
            misses_cpu_ += first && !on_device;
            misses_loaded_ += first && on_device && !hit;
            seen_[e] = 1;
            if (hit && static_cast<size_t>(e) < layer.fresh.size()) {
                layer.fresh[e] = 0;
            }
        }
    }
    if (!part_of_row_.empty()) {
        count_parts(layer, mask, resident);
    }
}

void DemandCounter::count_parts(Layer & layer, const Mask * mask, const Mask * resident) {
    last_part_.assign(layer.demand.size(), -1);
    const int32_t * route = layer.routes.data();
    for (int t = 0; t < layer.n_tokens && layer.n_parted < static_cast<int>(part_of_row_.size()); ++t) {
        const int      part  = part_of_row_[static_cast<size_t>(layer.n_parted++)];
        ExpertCounts & count = parts_[static_cast<size_t>(part)];
        for (int u = 0; u < layer.n_used; ++u) {
            const int32_t e         = *route++;
            const bool    on_device = mask != nullptr && mask->slot_of[e] >= 0;
            const bool    hit       = resident != nullptr && resident->slot_of[e] >= 0;
            const bool    first     = last_part_[e] != part;
            ++count.activations;
            count.activations_hit += hit;
            count.activations_loaded += on_device && !hit;
            count.distinct += first;
            count.distinct_hit += first && hit;
            count.misses_cpu += first && !on_device;
            count.misses_loaded += first && on_device && !hit;
            last_part_[e] = part;
        }
    }
}

void DemandCounter::note_routes(Layer & layer, const int32_t * ids, size_t stride, int n_used, int n_tokens) {
    layer.n_tokens = n_tokens;
    layer.n_used   = n_used;
    layer.routes.resize(std::max(layer.routes.size(), static_cast<size_t>(n_tokens) * n_used));
    int32_t * route = layer.routes.data();
    for (int t = 0; t < n_tokens; ++t) {
        const auto * token = reinterpret_cast<const int32_t *>(reinterpret_cast<const char *>(ids) + t * stride);
        route              = std::copy_n(token, n_used, route);
    }
}

void DemandCounter::note_tail(int il, const int32_t * ids, size_t stride, int n_used, int n_tokens) {
    const std::lock_guard lock(mutex_);
    const int             first = std::max(0, n_tokens - tail_tokens_.load());
    const auto *          tail  = reinterpret_cast<const char *>(ids) + first * stride;
    note_routes(at(il), reinterpret_cast<const int32_t *>(tail), stride, n_used, n_tokens - first);
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
        auto & fresh = at(load.id.layer).fresh;
        fresh.resize(std::max(fresh.size(), static_cast<size_t>(load.id.expert) + 1), 0);
        fresh[load.id.expert] = 1;
    }
}

void DemandCounter::note_evicted(const std::vector<Residency::Eviction> & evictions) {
    const std::lock_guard lock(mutex_);
    for (const Residency::Eviction & eviction : evictions) {
        uploads_wasted_ += std::exchange(at(eviction.id.layer).fresh[eviction.id.expert], 0);
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

std::pair<uint64_t, uint64_t> DemandCounter::activations_of(int il) const {
    const std::lock_guard lock(mutex_);
    const auto            place = static_cast<size_t>(il);
    return place < layers_.size() ? std::pair(layers_[place].activations, layers_[place].activations_hit)
                                  : std::pair(uint64_t{0}, uint64_t{0});
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
        const Layer &   layer = layers_[il];
        const int32_t * from  = layer.routes.data();
        // A layer that noted fewer has the last ones: a prompt's last layer computes only what wants logits.
        int32_t * to = ids.data() + (il * n_tokens + n_tokens - layer.n_tokens) * n_used;
        for (int t = 0; t < layer.n_tokens; ++t, from += layer.n_used, to += n_used) {
            std::copy_n(from, layer.n_used, to);
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
    stats.activations        = activations_;
    stats.activations_hit    = activations_hit_;
    stats.distinct           = distinct_;
    stats.distinct_hit       = distinct_hit_;
    stats.misses_cpu         = misses_cpu_;
    stats.misses_loaded      = misses_loaded_;
    stats.activations_loaded = activations_loaded_;
    stats.uploads_wasted     = uploads_wasted_;
}

} // namespace spac
