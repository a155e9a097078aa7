#include "backend/remote/split_client.h"

#include "backend/experts/expert_store.h"
#include "backend/experts/model_experts.h"
#include "backend/graph/moe_block.h"

#include <algorithm>

namespace spac {
namespace {

// Returns the place of the weight that a node reads through ids, among its sources.
int weight_place(const ggml_tensor * node) { return node->op == GGML_OP_MUL_MAT_ID ? 0 : 1; }

} // namespace

std::shared_ptr<ModelExperts> StoreWeights::replace(ggml_cgraph * graph) {
    std::shared_ptr<ModelExperts> first;
    for (int i = 0; i < graph->n_nodes; ++i) {
        ggml_tensor *       node   = graph->nodes[i];
        const ggml_tensor * weight = node != nullptr ? store_weight(node) : nullptr;
        if (weight == nullptr) {
            continue;
        }
        const auto experts            = experts_of(weight);
        Weight &   known              = copy_of(weight, experts);
        node->src[weight_place(node)] = known.tensor;
        if (ggml_nelements(node) > 0 && !std::exchange(known.met, true)) {
            met_[experts.get()] += GGML_PAD(ggml_nbytes(known.tensor), size_t{64});
        }
        first = first != nullptr ? first : experts;
    }
    return first;
}

size_t StoreWeights::bytes_met(const ModelExperts * model) const {
    const auto found = met_.find(model);
    return found == met_.end() ? 0 : found->second;
}

StoreWeights::Weight & StoreWeights::copy_of(const ggml_tensor *                   weight,
                                             const std::shared_ptr<ModelExperts> & experts) {
    Key    key{reinterpret_cast<uint64_t>(weight->data), static_cast<uint64_t>(weight->type),
            static_cast<uint64_t>(weight->view_src != nullptr)};
    auto * next = key.data() + 3;
    next        = std::copy(weight->ne, weight->ne + GGML_MAX_DIMS, next);
    std::copy(weight->nb, weight->nb + GGML_MAX_DIMS, next);
    Weight & known = known_[key];
    if (known.tensor != nullptr && known.experts.lock() == experts) {
        return known;
    }
    ggml_tensor copy = *weight;
    copy.op          = GGML_OP_NONE;
    std::fill(copy.src, copy.src + GGML_MAX_SRC, nullptr);
    if (weight->view_src != nullptr) {
        copy.view_src = copy_of(weight->view_src, experts).tensor;
    }
    if (copy.ne[3] == 1) { // messages have 32 bits for it
        copy.nb[3] = copy.nb[2] * static_cast<size_t>(copy.ne[2]);
    }
    tensors_.push_back(copy);
    Weight & made = known_[key]; // the call above may have added one
    made          = {&tensors_.back(), experts, false};
    return made;
}

} // namespace spac
