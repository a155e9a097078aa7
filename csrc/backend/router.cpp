#include "backend/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace spac {
namespace {

constexpr int longest_path = 16; // nodes between a router's matrix and its ids

const ggml_tensor * root(const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; }

// A vector of one number an expert that a node adds, in device memory.
const ggml_tensor * added(const ggml_tensor * node, int64_t n_expert) {
    const ggml_tensor * bias = node->src[1];
    return bias->op == GGML_OP_NONE && bias->type == GGML_TYPE_F32 && bias->buffer != nullptr &&
                   ggml_nelements(bias) == n_expert && ggml_is_contiguous(bias)
               ? bias
               : nullptr;
}

std::vector<float> table_of(const ggml_tensor * t) {
    std::vector<float> table(t != nullptr ? static_cast<size_t>(ggml_nelements(t)) : 0);
    if (t != nullptr) {
        ggml_backend_tensor_get(t, table.data(), 0, ggml_nbytes(t));
    }
    return table;
}

} // namespace

Router router_of(const Block & block) {
    Router              router;
    const ggml_tensor * t = block.ids;
    for (int i = 0; i < longest_path && t != nullptr; ++i) {
        switch (t->op) {
        case GGML_OP_VIEW:
        case GGML_OP_RESHAPE:
        case GGML_OP_CONT:
        case GGML_OP_ARGSORT:
        case GGML_OP_TOP_K:
            break;
        case GGML_OP_SOFT_MAX:
        case GGML_OP_UNARY:
            if (router.activation != Router::Activation::none ||
                (t->op == GGML_OP_UNARY && ggml_get_unary_op(t) != GGML_UNARY_OP_SIGMOID) ||
                (t->op == GGML_OP_SOFT_MAX && t->src[1] != nullptr)) {
                return {};
            }
            router.activation  = t->op == GGML_OP_UNARY ? Router::Activation::sigmoid : Router::Activation::softmax;
            router.choice_bias = std::exchange(router.bias, nullptr);
            break;
        case GGML_OP_ADD:
            if (router.bias != nullptr || added(t, t->ne[0]) == nullptr) {
                return {};
            }
            router.bias = added(t, t->ne[0]);
            break;
        case GGML_OP_MUL_MAT:
            if (root(t->src[1]) != root(block.input) || t->src[1]->ne[0] != block.input->ne[0] ||
                t->src[0]->op != GGML_OP_NONE || !ggml_is_contiguous(t->src[0])) {
                return {};
            }
            router.weight = t->src[0];
            return router;
        default:
            return {};
        }
        t = t->src[0];
    }
    return {};
}

Chooser::Chooser(const Router & router)
    : bias_(table_of(router.bias)), choice_bias_(table_of(router.choice_bias)), activation_(router.activation) {}

void Chooser::choose(float * scores, int n_expert, int n_used, int32_t * chosen) const {
    for (size_t e = 0; e < bias_.size(); ++e) {
        scores[e] += bias_[e];
    }
    if (!choice_bias_.empty()) { // else the order is that of the products
        const float most = *std::max_element(scores, scores + n_expert);
        float       sum  = 0;
        for (int e = 0; e < n_expert; ++e) {
            const bool soft = activation_ == Router::Activation::softmax;
            scores[e]       = soft ? std::exp(scores[e] - most) : 1 / (1 + std::exp(-scores[e]));
            sum += scores[e];
        }
        const float scale = activation_ == Router::Activation::softmax ? 1 / sum : 1;
        for (int e = 0; e < n_expert; ++e) {
            scores[e] = scores[e] * scale + choice_bias_[e];
        }
    }
    for (int n = 0; n < n_used; ++n) {
        const auto best = std::max_element(scores, scores + n_expert);
        chosen[n]       = static_cast<int32_t>(best - scores);
        *best           = -std::numeric_limits<float>::infinity();
    }
}

} // namespace spac
