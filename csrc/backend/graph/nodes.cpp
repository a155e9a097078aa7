#include "backend/graph/split_graph.h"

#include <cstring>
#include <unordered_set>

namespace spac {

ggml_tensor * leaf(ggml_context * ctx, ggml_type type, std::initializer_list<int64_t> ne, void * data,
                   ggml_backend_buffer_t buffer) {
    ggml_tensor * t = ggml_new_tensor(ctx, type, static_cast<int>(ne.size()), ne.begin());
    t->data         = data;
    t->buffer       = buffer;
    return t;
}

ggml_tensor * lookup(ggml_context * ctx, ggml_tensor * table, ggml_tensor * ids, void * data,
                     ggml_backend_buffer_t buffer) {
    ggml_tensor * t = ggml_get_rows(ctx, table, ids);
    t->data         = data;
    t->buffer       = buffer;
    t->flags |= GGML_TENSOR_FLAG_COMPUTE;
    return t;
}

ggml_tensor * table_leaf(ggml_context * ctx, ggml_type type, int64_t n_expert, int64_t n_tokens, void * data,
                         ggml_backend_buffer_t buffer) {
    ggml_tensor * t = leaf(ctx, type, {1, n_expert, n_tokens}, data, buffer);
    t->nb[2] = t->nb[3] = 0;
    return t;
}

ggml_tensor * copy_node(ggml_context * ctx, const ggml_tensor * node, NodeMap & map) {
    ggml_tensor * copy = ggml_new_tensor(ctx, node->type, GGML_MAX_DIMS, node->ne);
    *copy              = *node;
    for (ggml_tensor *& src : copy->src) {
        const auto it = map.find(src);
        src           = it != map.end() ? it->second : src;
    }
    if (node->view_src != nullptr) {
        copy->view_src = map.at(node->view_src);
    }
    map[node] = copy;
    return copy;
}

ggml_cgraph * count_uses(ggml_context * ctx, const std::vector<ggml_tensor *> & nodes) {
    ggml_cgraph * graph = ggml_new_graph_custom(ctx, nodes.size(), false);
    for (ggml_tensor * node : nodes) {
        graph->use_counts[ggml_hash_find_or_insert(&graph->visited_hash_set, node)] = 0;
        for (const ggml_tensor * src : node->src) {
            const size_t at = src != nullptr ? ggml_hash_find(&graph->visited_hash_set, src) : 0;
            if (src != nullptr && ggml_bitset_get(graph->visited_hash_set.used, at)) {
                ++graph->use_counts[at];
            }
        }
    }
    return graph;
}

void add_device_scales(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                       ggml_tensor * to, NodeMap & map, std::vector<ggml_tensor *> & nodes) {
    const Block & block = b.block;
    const auto    pairs = static_cast<int64_t>(block.n_pairs());
    for (size_t k = 0; k < block.scales.size(); ++k) {
        const Scale & scale = block.scales[k];
        const size_t  at    = k * pairs * sizeof(float);
        ggml_tensor * table =
            table_leaf(ctx, GGML_TYPE_F32, scale.n_expert(), block.n_tokens(), scale.table->data, scale.table->buffer);
        nodes.push_back(lookup(ctx, table, block.ids, s.device_scales + at, scratch));
        map[scale.rows] = nodes.back();
        if (to != nullptr) {
            ggml_tensor * all  = leaf(ctx, GGML_TYPE_F32, {1, pairs}, s.device_scales + at, scratch);
            ggml_tensor * some = lookup(ctx, all, to, s.compact_scales + at, scratch);
            nodes.push_back(some);
            map[scale.rows] = leaf(ctx, GGML_TYPE_F32, {1, 1, pairs}, some->data, scratch);
            b.compact_scales.insert(b.compact_scales.end(), {some, map[scale.rows]});
        }
    }
}

GraphImage::GraphImage(const ggml_cgraph * graph) : n_nodes_(graph->n_nodes) {
    std::unordered_set<const ggml_tensor *> known;
    known.reserve(static_cast<size_t>(n_nodes_) * 2);
    for (int i = 0; i < n_nodes_; ++i) {
        known.insert(graph->nodes[i]);
        add(graph->nodes[i]);
    }
    for (int i = 0; i < n_nodes_; ++i) {
        for (const ggml_tensor * src : graph->nodes[i]->src) {
            if (src != nullptr && known.insert(src).second) {
                add(src);
            }
        }
    }
}

void GraphImage::add(const ggml_tensor * t) {
    places_.push_back(t);
    tensors_.push_back(*t);
}

bool GraphImage::matches(const ggml_cgraph * graph) const {
    if (graph->n_nodes != n_nodes_) {
        return false;
    }
    for (size_t i = 0; i < places_.size(); ++i) {
        // the tensors behind the nodes in places_ exist, because unchanged nodes read them
        if ((i < static_cast<size_t>(n_nodes_) && graph->nodes[i] != places_[i]) ||
            std::memcmp(places_[i], &tensors_[i], sizeof(ggml_tensor)) != 0) {
            return false;
        }
    }
    return true;
}

} // namespace spac
