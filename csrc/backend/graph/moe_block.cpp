#include "backend/graph/moe_block.h"

#include "backend/experts/expert_store.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

namespace spac {
namespace {

bool reads_ids(const ggml_tensor * node) { return node->op == GGML_OP_MUL_MAT_ID || node->op == GGML_OP_ADD_ID; }

// Returns true for ops that compute each row of dims 1 and 2 from the same rows of their sources.
bool is_row_wise(const ggml_tensor * node) {
    switch (node->op) {
    case GGML_OP_MUL:
    case GGML_OP_ADD:
    case GGML_OP_SUB:
    case GGML_OP_SCALE:
    case GGML_OP_CLAMP:
    case GGML_OP_SQR:
    case GGML_OP_UNARY:
    case GGML_OP_GLU:
    case GGML_OP_VIEW:
    case GGML_OP_CONT:
        return true;
    default:
        return false;
    }
}

bool same_rows(const ggml_tensor * t, const ggml_tensor * ids) {
    return t->ne[1] == ids->ne[0] && t->ne[2] == ids->ne[1] && t->ne[3] == 1;
}

// Returns the table in which a node looks up a number for every id, [1, n_used, n_tokens], or null for other nodes. The
// lookup is get_rows(repeat(reshape(table))), where the repetition is over tokens.
const ggml_tensor * scale_table(const ggml_tensor * node, const ggml_tensor * ids) {
    const ggml_tensor * repeat = node->op == GGML_OP_GET_ROWS ? node->src[0] : nullptr;
    if (repeat == nullptr || repeat->op != GGML_OP_REPEAT || node->src[1] != ids || !same_rows(node, ids) ||
        repeat->ne[0] != 1 || repeat->ne[2] != ids->ne[1]) {
        return nullptr;
    }
    const ggml_tensor * view  = repeat->src[0];
    const ggml_tensor * table = view->view_src != nullptr ? view->view_src : view;
    const bool          whole = ggml_nelements(table) == repeat->ne[1] && ggml_nelements(view) == repeat->ne[1] &&
                       ggml_is_contiguous(view) && ggml_is_contiguous(table);
    return whole && table->op == GGML_OP_NONE && table->type == GGML_TYPE_F32 && !in_store(table) ? table : nullptr;
}

// Returns true if a token's ids are distinct: they are places of a ranking, or come from a table in the model's file.
bool are_distinct(const ggml_tensor * ids) {
    while (ids->op == GGML_OP_VIEW || ids->op == GGML_OP_RESHAPE || ids->op == GGML_OP_CONT) {
        ids = ids->src[0];
    }
    return ids->op == GGML_OP_ARGSORT || ids->op == GGML_OP_TOP_K || ids->op == GGML_OP_NONE ||
           (ids->op == GGML_OP_GET_ROWS && ids->src[0]->op == GGML_OP_NONE);
}

using TensorSet = std::unordered_set<const ggml_tensor *>;

// The lookups of scales among the nodes of a block's range.
struct Lookups {
    std::unordered_map<const ggml_tensor *, const ggml_tensor *> tables; // by the node that the chain reads
    TensorSet                                                    nodes;
};

class Finder {
  public:
    Finder(const ggml_cgraph * graph, bool repeats) : graph_(graph), repeats_(repeats) {}

    std::vector<Block> find() {
        std::unordered_map<const ggml_tensor *, size_t> by_ids;
        for (int i = 0; i < graph_->n_nodes; ++i) {
            ggml_tensor * node = graph_->nodes[i];
            if (store_weight(node) == nullptr) {
                continue;
            }
            const auto [it, is_new] = by_ids.emplace(node->src[2], blocks_.size());
            if (is_new) {
                blocks_.emplace_back();
                blocks_.back().first = i;
                blocks_.back().ids   = node->src[2];
            }
            blocks_[it->second].last = i;
        }
        members_.resize(blocks_.size());
        for (size_t b = 0; b < blocks_.size(); ++b) {
            blocks_[b].splittable = (repeats_ || are_distinct(blocks_[b].ids)) && trace(blocks_[b], members_[b]) &&
                                    !interleaved(blocks_[b]);
        }
        note_escapes();
        std::vector<Block> result;
        for (Block & block : blocks_) {
            if (block.splittable) {
                result.push_back(std::move(block));
            } else {
                one_by_one(block, result);
            }
        }
        std::sort(result.begin(), result.end(), [](auto & a, auto & b) { return a.first < b.first; });
        return result;
    }

  private:
    // Follows the chain from the first to the last node of the block, and notes its nodes. Returns false if rows cannot
    // be split.
    bool trace(Block & block, TensorSet & members) {
        const Lookups lookups = lookups_of(block);
        for (int i = block.first; i <= block.last; ++i) {
            ggml_tensor * node = graph_->nodes[i];
            if (lookups.nodes.count(node) != 0) {
                continue;
            }
            if (!belongs(block, members, node)) {
                if (touches(members, node) || computes(node)) {
                    return false;
                }
                continue;
            }
            if (!same_rows(node, block.ids) || (node->flags & GGML_TENSOR_FLAG_OUTPUT) != 0 ||
                !take_sources(block, members, lookups, node)) {
                return false;
            }
            members.insert(node);
            block.chain.push_back(node);
        }
        block.out = block.chain.back();
        if (block.input == nullptr || !ggml_is_contiguous(block.out) || !ggml_is_contiguous(block.input) ||
            block.input->type != GGML_TYPE_F32 || block.out->type != GGML_TYPE_F32 || block.input->ne[3] != 1) {
            return false;
        }
        members.insert(lookups.nodes.begin(), lookups.nodes.end());
        return true;
    }

    Lookups lookups_of(const Block & block) const {
        Lookups lookups;
        for (int i = block.first; i <= block.last; ++i) {
            const ggml_tensor * node = graph_->nodes[i];
            if (const ggml_tensor * table = scale_table(node, block.ids)) {
                lookups.tables.emplace(node, table);
                lookups.nodes.insert({node, node->src[0]});
            }
        }
        return lookups;
    }

    static bool belongs(const Block & block, const TensorSet & members, const ggml_tensor * node) {
        if (store_weight(node) != nullptr) {
            return node->src[2] == block.ids;
        }
        return !reads_ids(node) && is_row_wise(node) && touches(members, node);
    }

    // Returns true for nodes that compute. A foreign node that computes inside the range would have to keep its place
    // among the chain's copies, since the allocator depends on the order of nodes. llama.cpp builds none, so such a
    // block is not split.
    static bool computes(const ggml_tensor * node) {
        return node->op != GGML_OP_NONE && node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE &&
               node->op != GGML_OP_PERMUTE && node->op != GGML_OP_TRANSPOSE;
    }

    static bool touches(const TensorSet & members, const ggml_tensor * node) {
        for (const ggml_tensor * src : node->src) {
            if (src != nullptr && members.count(src) != 0) {
                return true;
            }
        }
        return node->view_src != nullptr && members.count(node->view_src) != 0;
    }

    // Notes weights, scales and the block's input. Returns false if the node reads any other tensor from outside the
    // chain, or writes to one.
    static bool take_sources(Block & block, const TensorSet & members, const Lookups & lookups, ggml_tensor * node) {
        const ggml_tensor * weight = store_weight(node);
        if (node->view_src != nullptr && members.count(node->view_src) == 0) {
            return false;
        }
        for (ggml_tensor * src : node->src) {
            if (src == nullptr || members.count(src) != 0) {
                continue;
            }
            const auto scale = lookups.tables.find(src);
            if (src == weight) {
                block.weights.push_back(weight);
            } else if (scale != lookups.tables.end() && node->op == GGML_OP_MUL && src == node->src[1]) {
                block.scales.push_back({src, scale->second});
            } else if (weight != nullptr && src == block.ids) {
                continue;
            } else if (node->op == GGML_OP_MUL_MAT_ID && src == node->src[1] &&
                       (block.input == nullptr || block.input == src)) {
                block.input = src;
            } else {
                return false;
            }
        }
        return true;
    }

    // Marks blocks as unsplittable if a node outside reads the chain (or a lookup of its scales) before its end. One
    // pass over the graph does this for all blocks, since graphs are made anew whenever the draft's length changes.
    void note_escapes() {
        std::unordered_map<const ggml_tensor *, size_t> inside;
        for (size_t b = 0; b < blocks_.size(); ++b) {
            for (const ggml_tensor * member : members_[b]) {
                if (blocks_[b].splittable && member != blocks_[b].out) {
                    inside.emplace(member, b);
                }
            }
        }
        const auto read = [&](const ggml_tensor * node, const ggml_tensor * src) {
            const auto found = src != nullptr ? inside.find(src) : inside.end();
            if (found != inside.end() && members_[found->second].count(node) == 0) {
                blocks_[found->second].splittable = false;
            }
        };
        for (int i = 0; i < graph_->n_nodes; ++i) {
            const ggml_tensor * node = graph_->nodes[i];
            for (const ggml_tensor * src : node->src) {
                read(node, src);
            }
            read(node, node->view_src);
        }
    }

    // Returns true if another block begins inside this one.
    bool interleaved(const Block & block) const {
        return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block & other) {
            return &other != &block && other.first >= block.first && other.first <= block.last;
        });
    }

    void one_by_one(const Block & block, std::vector<Block> & result) const {
        for (int i = block.first; i <= block.last; ++i) {
            ggml_tensor * node = graph_->nodes[i];
            if (store_weight(node) == nullptr || node->src[2] != block.ids) {
                continue;
            }
            Block single;
            single.first = single.last = i;
            single.chain               = {node};
            single.ids                 = block.ids;
            single.input               = node->op == GGML_OP_MUL_MAT_ID ? node->src[1] : node->src[0];
            single.out                 = node;
            single.weights             = {store_weight(node)};
            result.push_back(std::move(single));
        }
    }

    const ggml_cgraph *    graph_;
    bool                   repeats_;
    std::vector<Block>     blocks_;
    std::vector<TensorSet> members_; // for every block its chain, and the lookups of its scales
};

} // namespace

const ggml_tensor * store_weight(const ggml_tensor * node) {
    const ggml_tensor * weight = node->op == GGML_OP_MUL_MAT_ID ? node->src[0]
                                 : node->op == GGML_OP_ADD_ID   ? node->src[1]
                                                                : nullptr;
    return weight != nullptr && in_store(weight) ? weight : nullptr;
}

std::vector<Block> find_blocks(const ggml_cgraph * graph, bool repeats) { return Finder(graph, repeats).find(); }

} // namespace spac
