#include "backend/hidden_states/stream_tap.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace spac {
namespace {

// Most nodes between an FFN's first matrices and its last. No architecture has as many.
constexpr int longest_way = 12;

bool is_weight(const ggml_tensor * t) { return t != nullptr && t->op == GGML_OP_NONE; }

bool is_whole_view(const ggml_tensor * t) {
    return (t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW) && ggml_is_contiguous(t) &&
           ggml_nelements(t) == ggml_nelements(t->src[0]);
}

// Returns the tensor that a matrix is multiplied with to give `t`, where a bias, a scale or an adapter's part may
// follow. It is null if `t` is no such product.
const ggml_tensor * matrix_input(const ggml_tensor * t) {
    for (int i = 0; t != nullptr && i < longest_way; ++i) {
        switch (t->op) {
        case GGML_OP_MUL_MAT:
            return is_weight(t->src[0]) ? t->src[1] : nullptr;
        case GGML_OP_ADD:
        case GGML_OP_MUL:
        case GGML_OP_SCALE:
        case GGML_OP_CLAMP:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_CONT:
            t = t->src[0];
            break;
        default:
            return nullptr;
        }
    }
    return nullptr;
}

class Finder {
  public:
    explicit Finder(const ggml_cgraph * graph) : graph_(graph) {
        for (int i = 0; i < graph->n_nodes; ++i) {
            ggml_tensor * node = graph->nodes[i];
            place_.emplace(node, i);
            for (const ggml_tensor * src : node->src) {
                if (src != nullptr) {
                    readers_[src].push_back(node);
                }
            }
        }
    }

    std::vector<ggml_tensor *> find() {
        for (int i = 0; i < graph_->n_nodes; ++i) {
            const ggml_tensor * node = graph_->nodes[i];
            if (node->op == GGML_OP_GLU || node->op == GGML_OP_UNARY) {
                note_activation(node);
            } else if (node->op == GGML_OP_MUL_MAT_ID && routed_.insert(node->src[2]).second) {
                note_experts(node);
            }
        }
        std::sort(found_.begin(), found_.end());
        std::vector<ggml_tensor *> inputs;
        for (const int i : found_) {
            inputs.push_back(graph_->nodes[i]);
        }
        return inputs;
    }

  private:
    void note_activation(const ggml_tensor * node) {
        const ggml_tensor * input = matrix_input(node->src[0]);
        const bool          one   = node->src[1] == nullptr || matrix_input(node->src[1]) == input;
        if (input != nullptr && one && enters_matrix(node, input, longest_way)) {
            note(input);
        }
    }

    // Notes the input of a layer's experts. It is the same for all of them: a view of shape [width, 1, n_tokens].
    void note_experts(const ggml_tensor * node) {
        const ggml_tensor * input = node->src[1];
        if (input->ne[1] == 1 && is_whole_view(input)) {
            note(input);
        }
    }

    // Returns true if a matrix is multiplied with a result of `t` to which only results of `input` contribute. (The
    // gate of an attention's output is the counter-example: it is multiplied with that output first.)
    bool enters_matrix(const ggml_tensor * t, const ggml_tensor * input, int steps) const {
        const auto readers = readers_.find(t);
        if (steps == 0 || readers == readers_.end()) {
            return false;
        }
        return std::any_of(readers->second.begin(), readers->second.end(), [&](const ggml_tensor * reader) {
            const ggml_tensor * other = reader->src[0] == t ? reader->src[1] : reader->src[0];
            switch (reader->op) {
            case GGML_OP_MUL_MAT:
                return is_weight(reader->src[0]) && reader->src[1] == t;
            case GGML_OP_MUL:
            case GGML_OP_ADD:
            case GGML_OP_DIV:
                return (is_weight(other) || matrix_input(other) == input) && enters_matrix(reader, input, steps - 1);
            case GGML_OP_SQR:
            case GGML_OP_SCALE:
            case GGML_OP_CLAMP:
            case GGML_OP_NORM:
            case GGML_OP_RMS_NORM:
            case GGML_OP_RESHAPE:
            case GGML_OP_VIEW:
            case GGML_OP_CONT:
                return enters_matrix(reader, input, steps - 1);
            default:
                return false;
            }
        });
    }

    void note(const ggml_tensor * input) {
        while (is_whole_view(input)) {
            input = input->src[0];
        }
        const auto place = place_.find(input);
        const bool rows  = input->type == GGML_TYPE_F32 && ggml_is_contiguous(input) && ggml_is_matrix(input);
        if (rows && place != place_.end() && noted_.insert(input).second) {
            found_.push_back(place->second);
        }
    }

    const ggml_cgraph *                                                       graph_;
    std::unordered_map<const ggml_tensor *, int>                              place_;
    std::unordered_map<const ggml_tensor *, std::vector<const ggml_tensor *>> readers_;
    std::unordered_set<const ggml_tensor *>                                   routed_; // ids that were met
    std::unordered_set<const ggml_tensor *>                                   noted_;
    std::vector<int>                                                          found_;
};

} // namespace

std::vector<ggml_tensor *> find_ffn_inputs(const ggml_cgraph * graph) { return Finder(graph).find(); }

} // namespace spac
