#include "backend/split_graph.h"

#include "backend/model_experts.h"
#include "backend/nodes.h"
#include "backend/store.h"

#include <algorithm>

namespace spac {
namespace {

size_t row_bytes(const ggml_tensor * t) { return static_cast<size_t>(t->ne[0]) * sizeof(float); }
size_t span(const ggml_tensor * ids) { return ggml_nbytes(ids); }

// Host memory of a graph's own, for the ids of blocks that run wholly on the device: pinned, for a copy into any other
// memory waits for all that is queued before it.
size_t late_bytes(const std::vector<Block> & blocks) {
    size_t bytes = 0;
    for (const Block & block : blocks) {
        bytes += span(block.ids);
    }
    return bytes;
}

// Lays the shared memory out for one block; called with null arenas to measure.
Staging lay_out(const Block & block, Arena & host, Arena & device) {
    Staging      s     = {};
    const size_t pairs = block.n_pairs();
    s.ids              = host.take(span(block.ids));
    s.input            = host.take(ggml_nbytes(block.input));
    s.index            = reinterpret_cast<int32_t *>(host.take(3 * pairs * sizeof(int32_t)));
    s.host_ids         = reinterpret_cast<int32_t *>(host.take(pairs * sizeof(int32_t)));
    s.device_rows      = device.take(pairs * row_bytes(block.out));
    s.device_ids       = device.take(pairs * sizeof(int32_t));
    s.compact_input    = device.take(pairs * row_bytes(block.input));
    s.compact_output   = device.take(pairs * row_bytes(block.out));
    s.compact_index    = device.take(2 * pairs * sizeof(int32_t));
    s.device_scales    = device.take(pairs * sizeof(float) * block.scales.size());
    s.compact_scales   = device.take(pairs * sizeof(float) * block.scales.size());
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
    for (const Scale & scale : block.scales) {
        arena.take(ggml_nbytes(scale.rows));
    }
    return arena.used();
}

void make_host_part(ggml_context * ctx, SplitBlock & b, const Staging & s, Arena & arena) {
    const Block & block = b.block;
    // the input keeps its shape; ids are packed, with -1 where the device computes
    b.host_input =
        leaf(ctx, block.input->type, {block.input->ne[0], block.input->ne[1], block.input->ne[2]}, s.input, nullptr);
    ggml_tensor * ids = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.host_ids, nullptr);

    NodeMap map  = {{block.input, b.host_input}, {block.ids, ids}};
    b.host_graph = ggml_new_graph_custom(ctx, block.chain.size() + block.scales.size(), false);
    if (!block.scales.empty()) {
        // looked up by the ids of all rows: there is no number for -1
        ggml_tensor * all = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.ids, nullptr);
        all->nb[1] = all->nb[2] = block.ids->nb[1];
        for (const Scale & scale : block.scales) {
            std::vector<float> & table = b.host_scales.emplace_back(scale.n_expert());
            ggml_backend_tensor_get(scale.table, table.data(), 0, table.size() * sizeof(float));
            ggml_tensor * numbers =
                table_leaf(ctx, GGML_TYPE_F32, scale.n_expert(), block.n_tokens(), table.data(), nullptr);
            map[scale.rows] = lookup(ctx, numbers, all, arena.take(ggml_nbytes(scale.rows)), nullptr);
            b.host_graph->nodes[b.host_graph->n_nodes++] = map[scale.rows];
        }
    }
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
    const auto    pairs = static_cast<int64_t>(block.n_pairs());
    ggml_tensor * flat  = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, block.out->data, block.out->buffer);
    b.join_rows         = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, s.device_rows, scratch);
    b.join              = ggml_add(ctx, flat, b.join_rows);
    b.join->data        = flat->data;
    b.join->buffer      = flat->buffer;
    b.join->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

void join_and(ggml_tensor * join, const Part & dense, Part & both) {
    both.nodes = {join};
    both.nodes.insert(both.nodes.end(), dense.nodes.begin(), dense.nodes.end());
    both.fix();
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
    Arena late;
    late.take(late_bytes(blocks));
    size.host += late.used();
    return size;
}

std::unique_ptr<SplitGraph> prepare(const ggml_cgraph * graph, std::vector<Block> blocks, void * host,
                                    ggml_backend_buffer_t device) {
    auto g     = std::make_unique<SplitGraph>();
    g->uid     = graph->uid;
    g->n_nodes = graph->n_nodes;
    g->first   = graph->n_nodes > 0 ? graph->nodes[0] : nullptr;

    size_t n_tensors = 0, overhead = 0;
    for (const Block & block : blocks) {
        n_tensors += block.chain.size() + 3 * block.scales.size() + 8;
        overhead += ggml_graph_overhead_custom(block.chain.size() + block.scales.size(), false);
    }
    g->ctx.reset(ggml_init({(n_tensors + 1) * ggml_tensor_overhead() + overhead, nullptr, true}));

    Arena  whole(host);
    char * late  = whole.take(late_bytes(blocks));
    char * rest  = whole.take(0); // which blocks share
    int    next  = 0;
    bool   noted = false;
    for (Block & block : blocks) {
        auto b      = std::make_unique<SplitBlock>();
        b->ids_span = span(block.ids);
        b->late_ids = late;
        late += b->ids_span;
        b->before.nodes.assign(graph->nodes + next, graph->nodes + block.first);
        next        = block.last + 1;
        b->experts  = experts_of(block.weights.front());
        b->n_expert = ExpertWeight{block.weights.front(), 0}.n_expert();
        if (block.splittable) {
            b->layer = b->experts->find_or_add_layer(block.weights, block.n_used());
            if (b->layer < 0) {
                b->experts->note_unsplit(block.weights.front()->name, ModelExperts::Unsplit::late);
            }
        } else {
            if (!noted) { // an adapter's own weights come after those that it is applied to
                b->experts->note_unsplit(block.weights.front()->name, ModelExperts::Unsplit::chain);
            }
            noted = true;
        }
        b->block    = std::move(block);
        g->n_tokens = std::max(g->n_tokens, b->block.n_tokens());

        Arena         host_arena(rest), device_arena(ggml_backend_buffer_get_base(device));
        const Staging staging = lay_out(b->block, host_arena, device_arena);
        g->staging.push_back(staging);
        make_host_part(g->ctx.get(), *b, staging, host_arena);
        make_join(g->ctx.get(), *b, staging, device);
        if (!g->blocks.empty()) {
            join_and(g->blocks.back()->join, b->before, b->joined);
        }
        b->before.fix();
        g->blocks.push_back(std::move(b));
    }
    g->tail.nodes.assign(graph->nodes + next, graph->nodes + graph->n_nodes);
    if (!g->blocks.empty()) {
        join_and(g->blocks.back()->join, g->tail, g->joined_tail);
    }
    g->tail.fix();
    return g;
}

} // namespace spac
