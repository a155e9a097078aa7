#include "backend/graph/router.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace spac {
namespace {

constexpr int longest_path = 16; // nodes between a router's matrix and its ids

const ggml_tensor * root(const ggml_tensor * t) { return t->view_src != nullptr ? t->view_src : t; }

// Returns the vector in device memory, one number per expert, that a node adds, or null.
const ggml_tensor * added(const ggml_tensor * node, int64_t n_expert) {
    const ggml_tensor * bias = node->src[1];
    return bias->op == GGML_OP_NONE && bias->type == GGML_TYPE_F32 && bias->buffer != nullptr &&
                   ggml_nelements(bias) == n_expert && ggml_is_contiguous(bias)
               ? bias
               : nullptr;
}

bool is_unary(const ggml_tensor * t, ggml_unary_op op) { return t->op == GGML_OP_UNARY && ggml_get_unary_op(t) == op; }

Router::Activation activation_of(const ggml_tensor * t) {
    if (t->op == GGML_OP_SOFT_MAX && t->src[1] == nullptr) {
        return Router::Activation::softmax;
    }
    if (t->op == GGML_OP_SQRT && is_unary(t->src[0], GGML_UNARY_OP_SOFTPLUS)) {
        return Router::Activation::sqrt_softplus;
    }
    return is_unary(t, GGML_UNARY_OP_SIGMOID) ? Router::Activation::sigmoid : Router::Activation::none;
}

// Returns the scores of all groups, [experts of a group, groups, tokens], if a node keeps only the scores of the best
// groups: set_rows(fill(groups, -inf), get_rows(groups, chosen), chosen). It returns null for other nodes.
const ggml_tensor * all_groups(const ggml_tensor * masked) {
    const ggml_tensor * kept   = masked->src[0];
    const ggml_tensor * chosen = masked->src[1];
    if (masked->op != GGML_OP_SET_ROWS || kept->op != GGML_OP_GET_ROWS || kept->src[1] != chosen ||
        kept->src[0]->ne[0] != masked->ne[0] || kept->src[0]->ne[1] != masked->ne[1] || chosen->ne[0] > masked->ne[1]) {
        return nullptr;
    }
    return kept->src[0];
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
        case GGML_OP_SQRT:
            if (router.activation != Router::Activation::none || activation_of(t) == Router::Activation::none) {
                return {};
            }
            router.activation  = activation_of(t);
            router.choice_bias = std::exchange(router.bias, nullptr);
            t                  = t->op == GGML_OP_SQRT ? t->src[0] : t; // this activation is two nodes
            break;
        case GGML_OP_ADD:
            if (router.bias != nullptr || added(t, t->ne[0]) == nullptr) {
                return {};
            }
            router.bias = added(t, t->ne[0]);
            break;
        case GGML_OP_SET_ROWS:
            if (router.n_groups > 1 || router.activation != Router::Activation::none || all_groups(t) == nullptr) {
                return {};
            }
            router.n_groups      = static_cast<int>(t->ne[1]);
            router.n_groups_used = static_cast<int>(t->src[1]->ne[0]);
            t                    = all_groups(t);
            continue;
        case GGML_OP_MUL_MAT:
            if (t->src[0]->op != GGML_OP_NONE || !ggml_is_contiguous(t->src[0]) || t->src[1]->type != GGML_TYPE_F32 ||
                !ggml_is_contiguous(t->src[1]) || ggml_nrows(t->src[1]) != block.n_tokens()) {
                return {};
            }
            router.weight    = t->src[0];
            router.product   = t;
            router.own_input = root(t->src[1]) != root(block.input) || t->src[1]->ne[0] != block.input->ne[0];
            return router;
        default:
            return {};
        }
        t = t->src[0];
    }
    return {};
}

std::vector<float> matrix_of(const Router & router) {
    const ggml_tensor * t = router.weight;
    if (t->type == GGML_TYPE_F32) {
        return table_of(t);
    }
    std::vector<char>  bytes(ggml_nbytes(t));
    std::vector<float> values(static_cast<size_t>(ggml_nelements(t)));
    ggml_backend_tensor_get(t, bytes.data(), 0, bytes.size());
    ggml_get_type_traits(t->type)->to_float(bytes.data(), values.data(), ggml_nelements(t));
    return values;
}

Chooser::Chooser(const Router & router)
    : bias_(table_of(router.bias)), choice_bias_(table_of(router.choice_bias)), activation_(router.activation),
      n_groups_(router.n_groups), n_groups_used_(router.n_groups_used) {}

void Chooser::activate(float * scores, int n_expert) const {
    using Activation = Router::Activation;
    const float most = *std::max_element(scores, scores + n_expert);
    std::transform(scores, scores + n_expert, scores, [&](float x) {
        switch (activation_) {
        case Activation::softmax:
            return std::exp(x - most);
        case Activation::sigmoid:
            return 1 / (1 + std::exp(-x));
        case Activation::sqrt_softplus:
            return std::sqrt(std::max(x, 0.0F) + std::log1p(std::exp(-std::fabs(x))));
        default:
            return x;
        }
    });
    const float sum = activation_ == Activation::softmax ? std::accumulate(scores, scores + n_expert, 0.0F) : 1;
    for (int e = 0; e < n_expert; ++e) {
        scores[e] = scores[e] / sum + (choice_bias_.empty() ? 0 : choice_bias_[static_cast<size_t>(e)]);
    }
}

void Chooser::leave_groups_out(float * scores, int n_expert) const {
    const int                          size = n_expert / n_groups_;
    std::vector<std::pair<float, int>> groups; // the sum of its two best experts, and its first expert
    for (float * group = scores; group < scores + n_expert; group += size) {
        float best = *group, second = size > 1 ? -std::numeric_limits<float>::infinity() : 0;
        for (int e = 1; e < size; ++e) {
            second = std::max(second, std::min(best, group[e]));
            best   = std::max(best, group[e]);
        }
        groups.emplace_back(best + second, static_cast<int>(group - scores));
    }
    std::sort(groups.begin(), groups.end(), std::greater<>());
    for (size_t g = static_cast<size_t>(n_groups_used_); g < groups.size(); ++g) {
        std::fill_n(scores + groups[g].second, size, -std::numeric_limits<float>::infinity());
    }
}

void Chooser::choose(float * scores, int n_expert, int n_used, int32_t * chosen) const {
    for (size_t e = 0; e < bias_.size(); ++e) {
        scores[e] += bias_[e];
    }
    if (!choice_bias_.empty() || n_groups_ > 1) { // otherwise the products give the order
        activate(scores, n_expert);
    }
    if (n_groups_ > 1) {
        leave_groups_out(scores, n_expert);
    }
    int n = 0; // experts in `chosen`, best first
    for (int e = 0; e < n_expert; ++e) {
        if (n == n_used && !(scores[e] > scores[chosen[n - 1]])) {
            continue;
        }
        int at = n < n_used ? n++ : n - 1;
        for (; at > 0 && scores[e] > scores[chosen[at - 1]]; --at) {
            chosen[at] = chosen[at - 1];
        }
        chosen[at] = e;
    }
}

} // namespace spac
