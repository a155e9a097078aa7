#include "backend/experts/model_experts.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace spac {
namespace {

int max_slots(const std::vector<ExpertWeight> & weights, ggml_backend_dev_t device) {
    int most = std::numeric_limits<int>::max();
    for (const ExpertWeight & weight : weights) {
        most = std::min(most, weight.max_slots(device));
    }
    return most;
}

} // namespace

int ExpertLayers::find_or_add(const std::vector<const ggml_tensor *> & weights, int n_used, ggml_backend_dev_t device) {
    for (size_t il = 0; il < layers_.size(); ++il) {
        const auto & known = layers_[il].weights;
        if (known.size() == weights.size() &&
            std::equal(known.begin(), known.end(), weights.begin(), [](auto & a, auto * b) { return a.tensor == b; })) {
            LayerInfo & info = layers_[il].info;
            if (n_used < info.n_expert || info.n_used == 0) { // a warm-up graph, which uses all experts, does not count
                info.n_used = std::min(n_used, info.n_expert);
            }
            return static_cast<int>(il);
        }
    }
    if (frozen_) {
        return -1;
    }
    Layer layer = {};
    for (const ggml_tensor * t : weights) {
        const bool bias = t->ne[2] == 1;
        layer.weights.push_back({t, bias ? t->nb[1] : t->nb[2]});
        layer.info.expert_bytes += layer.weights.back().bytes;
        if (!bias) {
            layer.info.name     = t->name;
            layer.info.n_expert = layer.weights.back().n_expert();
        }
    }
    const auto known  = std::find(devices_.begin(), devices_.end(), device);
    layer.info.n_used = n_used;
    layer.info.device = static_cast<int>(known - devices_.begin());
    layer.device      = device;
    if (known == devices_.end()) {
        devices_.push_back(device);
    }
    layer.info.pool = pool_for(layer, device);
    n_pool_         = std::max(n_pool_, layer.info.pool + 1);
    layers_.push_back(std::move(layer));
    return size() - 1;
}

int ExpertLayers::n_expert() const {
    int n = 0;
    for (const Layer & layer : layers_) {
        n = std::max(n, layer.info.n_expert);
    }
    return n;
}

// ---- pools

// Layers of a device with equal shapes share a pool, as long as one tensor can stack slots for all their experts.
int ExpertLayers::pool_for(const Layer & layer, ggml_backend_dev_t device) const {
    int pool = n_pool_;
    for (const Layer & other : layers_) {
        if (other.device == device && other.weights.size() == layer.weights.size() &&
            std::equal(other.weights.begin(), other.weights.end(), layer.weights.begin(),
                       [](auto & a, auto & b) { return a.same_shape(b); })) {
            pool = other.info.pool; // the latest pool of this shape
        }
    }
    int64_t n_expert = layer.info.n_expert;
    for (const Layer & other : layers_) {
        n_expert += other.info.pool == pool ? other.info.n_expert : 0;
    }
    return n_expert <= max_slots(layer.weights, device) ? pool : n_pool_;
}

std::vector<std::vector<ExpertWeight>> ExpertLayers::prototypes() const {
    std::vector<std::vector<ExpertWeight>> prototypes(n_pool_);
    for (const Layer & layer : layers_) {
        prototypes[layer.info.pool] = layer.weights;
    }
    return prototypes;
}

std::vector<int> ExpertLayers::pool_limits() const {
    std::vector<int>  limits(n_pool_);
    std::vector<char> known(n_pool_, 0);
    for (const Layer & layer : layers_) {
        const int pool = layer.info.pool;
        if (!std::exchange(known[pool], 1)) {
            limits[pool] = max_slots(layer.weights, layer.device);
        }
    }
    return limits;
}

std::vector<SlotTable::Layer> ExpertLayers::table_layers() const {
    std::vector<SlotTable::Layer> layers;
    for (const Layer & layer : layers_) {
        layers.push_back({layer.info.n_expert, layer.info.pool});
    }
    return layers;
}

std::vector<SlotTable::Layer> ExpertLayers::table_layers_on(int device) const {
    std::vector<SlotTable::Layer> layers = table_layers();
    for (size_t il = 0; il < layers.size(); ++il) {
        layers[il].n_expert = layers_[il].info.device == device ? layers[il].n_expert : 0;
    }
    return layers;
}

} // namespace spac
