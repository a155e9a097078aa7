#include "backend/split_graph.h"

#include "backend/model_experts.h"
#include "backend/store.h"

#include <algorithm>
#include <unordered_map>

namespace spac {
namespace {

size_t row_bytes(const ggml_tensor * t) { return static_cast<size_t>(t->ne[0]) * sizeof(float); }
size_t n_pairs(const Block & block) { return static_cast<size_t>(block.n_used()) * block.n_tokens(); }
size_t span(const ggml_tensor * ids) { return ggml_nbytes(ids); }

// Lays the shared memory out for one block; called with null arenas to measure.
Staging lay_out(const Block & block, Arena & host, Arena & device) {
    Staging      s     = {};
    const size_t pairs = n_pairs(block);
    s.ids              = host.take(span(block.ids));
    s.input            = host.take(ggml_nbytes(block.input));
    s.rows             = host.take(pairs * row_bytes(block.out));
    s.index            = reinterpret_cast<int32_t *>(host.take(4 * pairs * sizeof(int32_t)));
    s.host_ids         = reinterpret_cast<int32_t *>(host.take(pairs * sizeof(int32_t)));
    s.device_rows      = device.take(pairs * row_bytes(block.out));
    s.device_index     = device.take(pairs * sizeof(int32_t));
    s.device_ids       = device.take(pairs * sizeof(int32_t));
    s.compact_input    = device.take(pairs * row_bytes(block.input));
    s.compact_output   = device.take(pairs * row_bytes(block.out));
    s.compact_index    = device.take(2 * pairs * sizeof(int32_t));
    return s;
}

// Memory of the host's copies of the chain.
size_t chain_bytes(const Block & block) {
    Arena arena;
    for (const ggml_tensor * node : block.chain) {
        if (node->view_src == nullptr) {
            arena.take(ggml_nbytes(node));
        }
    }
    return arena.used();
}

ggml_tensor * leaf(ggml_context * ctx, ggml_type type, std::initializer_list<int64_t> ne, void * data,
                   ggml_backend_buffer_t buffer) {
    ggml_tensor * t = ggml_new_tensor(ctx, type, static_cast<int>(ne.size()), ne.begin());
    t->data         = data;
    t->buffer       = buffer;
    return t;
}

// Copies one node; its sources are looked up in `map` and kept where they are not there.
ggml_tensor * copy_node(ggml_context * ctx, const ggml_tensor * node,
                        std::unordered_map<const ggml_tensor *, ggml_tensor *> & map) {
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

void make_host_part(ggml_context * ctx, SplitBlock & b, const Staging & s, Arena & arena) {
    const Block & block = b.block;
    // the input keeps its shape; ids are packed, with -1 where the device computes
    b.host_input =
        leaf(ctx, block.input->type, {block.input->ne[0], block.input->ne[1], block.input->ne[2]}, s.input, nullptr);
    ggml_tensor * ids = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.host_ids, nullptr);

    std::unordered_map<const ggml_tensor *, ggml_tensor *> map = {{block.input, b.host_input}, {block.ids, ids}};
    b.host_graph                                               = ggml_new_graph_custom(ctx, block.chain.size(), false);
    for (const ggml_tensor * node : block.chain) {
        ggml_tensor * copy                           = copy_node(ctx, node, map);
        copy->buffer                                 = nullptr;
        copy->data                                   = node->view_src == nullptr
                                                           ? arena.take(ggml_nbytes(node))
                                                           : static_cast<char *>(copy->view_src->data) +
                               (static_cast<char *>(node->data) - static_cast<char *>(node->view_src->data));
        b.host_graph->nodes[b.host_graph->n_nodes++] = copy;
        b.host_out                                   = copy;
    }
}

void make_join(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch) {
    const Block & block = b.block;
    const auto    pairs = static_cast<int64_t>(n_pairs(block));
    ggml_tensor * flat  = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, block.out->data, block.out->buffer);
    b.join_rows         = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, s.device_rows, scratch);
    b.join_index        = leaf(ctx, GGML_TYPE_I32, {pairs}, s.device_index, scratch);
    b.join              = ggml_set_rows(ctx, flat, b.join_rows, b.join_index);
    b.join->data        = flat->data;
    b.join->buffer      = flat->buffer;
    b.join->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

} // namespace

StagingSize staging_size(const std::vector<Block> & blocks) {
    StagingSize size;
    for (const Block & block : blocks) {
        Arena host, device;
        lay_out(block, host, device);
        size.host   = std::max(size.host, host.used() + chain_bytes(block));
        size.device = std::max(size.device, device.used());
    }
    return size;
}

std::unique_ptr<SplitGraph> prepare(const ggml_cgraph * graph, std::vector<Block> blocks, void * host,
                                    ggml_backend_buffer_t device) {
    auto g     = std::make_unique<SplitGraph>();
    g->uid     = graph->uid;
    g->n_nodes = graph->n_nodes;
    g->first   = graph->n_nodes > 0 ? graph->nodes[0] : nullptr;

    size_t n_tensors = 0, n_late = 0, overhead = 0;
    for (const Block & block : blocks) {
        n_tensors += block.chain.size() + 8;
        n_late += span(block.ids);
        overhead += ggml_graph_overhead_custom(block.chain.size(), false);
    }
    g->ctx.reset(ggml_init({(n_tensors + 1) * ggml_tensor_overhead() + overhead, nullptr, true}));
    g->late_ids = std::make_unique<char[]>(n_late);

    char * late  = g->late_ids.get();
    int    next  = 0;
    bool   noted = false;
    for (Block & block : blocks) {
        auto b      = std::make_unique<SplitBlock>();
        b->ids_span = span(block.ids);
        b->late_ids = late;
        late += b->ids_span;
        b->before.insert(b->before.end(), graph->nodes + next, graph->nodes + block.first);
        next        = block.last + 1;
        b->experts  = experts_of(block.weights.front());
        b->n_expert = ExpertWeight{block.weights.front(), 0}.n_expert();
        if (block.splittable) {
            b->layer = b->experts->find_or_add_layer(block.weights, block.n_used());
        } else {
            if (!noted) { // an adapter's own weights come after those that it is applied to
                b->experts->note_unsplit(block.weights.front()->name);
            }
            noted = true;
        }
        b->block    = std::move(block);
        g->n_tokens = std::max(g->n_tokens, b->block.n_tokens());

        Arena         host_arena(host), device_arena(ggml_backend_buffer_get_base(device));
        const Staging staging = lay_out(b->block, host_arena, device_arena);
        g->staging.push_back(staging);
        make_host_part(g->ctx.get(), *b, staging, host_arena);
        make_join(g->ctx.get(), *b, staging, device);
        g->blocks.push_back(std::move(b));
    }
    g->tail.insert(g->tail.end(), graph->nodes + next, graph->nodes + graph->n_nodes);
    return g;
}

void prepare_device(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, ggml_backend_t inner,
                    std::shared_ptr<const SlotStorage> storage, uint64_t generation, ggml_tensor * mask_row) {
    const Block & block  = b.block;
    const auto    pairs  = static_cast<int64_t>(n_pairs(block));
    b.storage            = std::move(storage);
    b.storage_generation = generation;
    b.slot_lookup        = nullptr;
    b.device_nodes.clear();
    b.device_chain.clear();
    b.device_ctx.reset(ggml_init({(block.chain.size() + 12) * ggml_tensor_overhead(), nullptr, true}));
    ggml_context * ctx  = b.device_ctx.get();
    const int      pool = b.experts->pool_of(b.layer);

    std::unordered_map<const ggml_tensor *, ggml_tensor *> map;
    for (size_t w = 0; w < block.weights.size(); ++w) {
        map[block.weights[w]] = b.storage->tensor(pool, static_cast<int>(w));
    }
    b.device_can = std::all_of(map.begin(), map.end(), [](auto & entry) { return entry.second != nullptr; });
    if (!b.device_can) {
        return;
    }
    const bool masked = mask_row != nullptr;
    if (masked) {
        // the table as [1, n_expert, n_tokens] with no step between tokens: one lookup for all ids
        ggml_tensor * table =
            leaf(ctx, GGML_TYPE_I32, {1, mask_row->ne[1], block.n_tokens()}, mask_row->data, mask_row->buffer);
        table->nb[2] = table->nb[3] = 0;
        b.slot_lookup               = ggml_get_rows(ctx, table, block.ids);
        b.slot_lookup->data         = s.device_ids;
        b.slot_lookup->buffer       = scratch;
        b.slot_lookup->flags |= GGML_TENSOR_FLAG_COMPUTE;
        b.device_nodes.push_back(b.slot_lookup);
        map[block.ids] = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.device_ids, scratch);
    } else {
        const int64_t rows = block.input->ne[1] * block.input->ne[2];
        ggml_tensor * input =
            leaf(ctx, GGML_TYPE_F32, {block.input->ne[0], rows}, block.input->data, block.input->buffer);
        ggml_tensor * from       = leaf(ctx, GGML_TYPE_I32, {pairs}, s.compact_index, scratch);
        b.compact_gather         = ggml_get_rows(ctx, input, from);
        b.compact_gather->data   = s.compact_input;
        b.compact_gather->buffer = scratch;
        b.compact_gather->flags |= GGML_TENSOR_FLAG_COMPUTE;
        b.device_nodes.push_back(b.compact_gather);
        b.compact_ids    = leaf(ctx, GGML_TYPE_I32, {1, pairs}, s.device_ids, scratch);
        map[block.ids]   = b.compact_ids;
        map[block.input] = leaf(ctx, GGML_TYPE_F32, {block.input->ne[0], 1, pairs}, s.compact_input, scratch);
    }

    size_t i = 0;
    for (const ggml_tensor * node : block.chain) {
        ggml_tensor * copy = copy_node(ctx, node, map);
        if (!masked && ++i == block.chain.size()) {
            copy->data   = s.compact_output;
            copy->buffer = scratch;
        }
        b.device_nodes.push_back(copy);
        b.device_chain.push_back(copy);
    }
    if (!masked) {
        ggml_tensor * out  = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, block.out->data, block.out->buffer);
        ggml_tensor * rows = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, s.compact_output, scratch);
        ggml_tensor * to   = leaf(ctx, GGML_TYPE_I32, {pairs}, s.compact_index + pairs * sizeof(int32_t), scratch);
        b.compact_scatter  = ggml_set_rows(ctx, out, rows, to);
        b.compact_scatter->data   = out->data;
        b.compact_scatter->buffer = out->buffer;
        b.compact_scatter->flags |= GGML_TENSOR_FLAG_COMPUTE;
        b.device_nodes.push_back(b.compact_scatter);
    }
    b.device_can = ggml_backend_supports_op(inner, b.join) &&
                   std::all_of(b.device_nodes.begin(), b.device_nodes.end(),
                               [&](const ggml_tensor * node) { return ggml_backend_supports_op(inner, node); });
}

void set_compact_pairs(SplitBlock & b, int n) {
    const auto set_rows = [n](ggml_tensor * t, int dim) {
        t->ne[dim] = n;
        for (int d = dim + 1; d < GGML_MAX_DIMS; ++d) {
            t->nb[d] = t->nb[d - 1] * t->ne[d - 1];
        }
    };
    set_rows(b.compact_gather->src[1], 0);
    set_rows(b.compact_gather, 1);
    set_rows(b.compact_ids, 1);
    for (ggml_tensor * copy : b.device_chain) {
        // rows [width, n_used, n_tokens] become [width, 1, n]
        copy->ne[1] = 1;
        copy->ne[2] = n;
        copy->ne[3] = 1;
        copy->nb[1] = copy->view_src ? copy->view_src->nb[1] : ggml_row_size(copy->type, copy->ne[0]);
        copy->nb[2] = copy->nb[1];
        copy->nb[3] = copy->nb[2] * n;
        if (copy->op == GGML_OP_MUL_MAT_ID && copy->src[1]->data == b.compact_gather->data) {
            set_rows(copy->src[1], 2);
        }
    }
    set_rows(b.compact_scatter->src[0], 1);
    set_rows(b.compact_scatter->src[1], 0);
}

void set_join_rows(SplitBlock & b, int n) {
    b.join_rows->ne[1] = n;
    b.join_rows->nb[2] = b.join_rows->nb[3] = b.join_rows->nb[1] * n;
    b.join_index->ne[0]                     = n;
    b.join_index->nb[1] = b.join_index->nb[2] = b.join_index->nb[3] = static_cast<size_t>(n) * sizeof(int32_t);
}

} // namespace spac
