#include "backend/graph/split_graph.h"

#include "backend/experts/expert_store.h"
#include "backend/experts/lookahead.h"
#include "backend/experts/model_experts.h"

#include <algorithm>
#include <utility>

namespace spac {
namespace {

size_t row_bytes(const ggml_tensor * t) { return static_cast<size_t>(t->ne[0]) * sizeof(float); }
size_t span(const ggml_tensor * ids) { return ggml_nbytes(ids); }

// Returns the bytes of host memory for the ids of blocks that run wholly on the device. It is pinned, because a copy
// into other memory waits for everything that is queued before it.
size_t late_bytes(const std::vector<Block> & blocks) {
    size_t bytes = 0;
    for (const Block & block : blocks) {
        bytes += block.is_staged ? span(block.ids) : 0;
    }
    return bytes;
}

int n_expert_of(const Block & block) { return ExpertWeight{block.weights.front(), 0}.n_expert(); }

// Returns true if this block may predict a later one.
bool foresees(const Block & block) {
    return block.splittable && block.n_tokens() <= Lookahead::most_tokens && block.input->ne[1] == 1;
}

// Lays out the shared memory for one block. With null arenas, it measures.
Staging lay_out(const Block & block, Arena & host, Arena & device) {
    Staging      s     = {};
    const size_t pairs = block.n_pairs();
    s.device_scales    = device.take(pairs * sizeof(float) * block.scales.size());
    if (!block.is_staged) {
        return s;
    }
    s.ids               = host.take(span(block.ids));
    s.input             = host.take(ggml_nbytes(block.input));
    s.index             = reinterpret_cast<int32_t *>(host.take(3 * pairs * sizeof(int32_t)));
    s.host_ids          = reinterpret_cast<int32_t *>(host.take(pairs * sizeof(int32_t)));
    const size_t scores = foresees(block) ? sizeof(float) * n_expert_of(block) * block.n_tokens() : 0;
    s.host_scores       = reinterpret_cast<float *>(host.take(scores));
    s.scores            = device.take(scores);
    s.device_rows       = device.take(pairs * row_bytes(block.out));
    s.device_ids        = device.take(pairs * sizeof(int32_t));
    s.compact_input     = device.take(pairs * row_bytes(block.input));
    s.compact_output    = device.take(pairs * row_bytes(block.out));
    s.compact_index     = device.take(2 * pairs * sizeof(int32_t));
    s.compact_scales    = device.take(pairs * sizeof(float) * block.scales.size());
    return s;
}

// Returns the bytes of the host's copies of the chain.
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
    // the input keeps its shape; ids are packed, and -1 for rows that the device computes
    b.host_input =
        leaf(ctx, block.input->type, {block.input->ne[0], block.input->ne[1], block.input->ne[2]}, s.input, nullptr);
    ggml_tensor * ids = leaf(ctx, GGML_TYPE_I32, {block.n_used(), block.n_tokens()}, s.host_ids, nullptr);

    NodeMap map  = {{block.input, b.host_input}, {block.ids, ids}};
    b.host_graph = ggml_new_graph_custom(ctx, block.chain.size() + block.scales.size(), false);
    if (!block.scales.empty()) {
        // the lookup uses the ids of all rows, since there is no number for -1
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

void make_join(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
               ggml_backend_buffer_t host) {
    const Block & block = b.block;
    const auto    pairs = static_cast<int64_t>(block.n_pairs());
    ggml_tensor * flat  = leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, block.out->data, block.out->buffer);
    b.join_rows         = b.in_place ? leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, b.host_out->data, host)
                                     : leaf(ctx, GGML_TYPE_F32, {block.out->ne[0], pairs}, s.device_rows, scratch);
    b.join              = ggml_add(ctx, flat, b.join_rows);
    b.join->data        = flat->data;
    b.join->buffer      = flat->buffer;
    b.join->flags |= GGML_TENSOR_FLAG_COMPUTE;
}

// Makes another node for the same join.
ggml_tensor * copy_join(ggml_context * ctx, const SplitBlock & b) {
    ggml_tensor * copy = ggml_add(ctx, b.join->src[0], b.join->src[1]);
    copy->data         = b.join->data;
    copy->buffer       = b.join->buffer;
    copy->flags |= GGML_TENSOR_FLAG_COMPUTE;
    return copy;
}

// Makes a part of the nodes from `begin` to `end`, behind a node of spac's that computes nothing.
void take_dense(ggml_context * ctx, ggml_tensor ** begin, ggml_tensor ** end, Part & dense) {
    if (begin != end) {
        dense.nodes = {leaf(ctx, GGML_TYPE_F32, {1}, (*begin)->data, (*begin)->buffer)};
        dense.nodes.insert(dense.nodes.end(), begin, end);
        dense.fix();
    }
}

void join_and(ggml_tensor * join, const Part & dense, Part & both) {
    both.nodes = {join};
    if (!dense.nodes.empty()) {
        both.nodes.insert(both.nodes.end(), dense.nodes.begin() + 1, dense.nodes.end());
    }
    both.fix();
}

// Adds a node of spac's to a part, right before the node `before`, or at the end. Returns false if `before` is missing.
bool add_node(Part & part, ggml_tensor * node, const ggml_tensor * before) {
    const auto at = std::find(part.nodes.begin(), part.nodes.end(), before);
    if (before != nullptr && at == part.nodes.end()) {
        return false;
    }
    part.nodes.insert(at, node);
    return true;
}

// Most tokens of a block whose scores kernels write straight to the host's memory. These kernels multiply a vector at a
// time. Kernels for more tokens may add to numbers that they wrote before.
constexpr int most_written_straight = 8;
// Most rows of a block's input for the hand-off in place. For more rows a copy engine is as fast, and leaves the
// device's cores to kernels.
constexpr int64_t most_rows_in_place = 64;

bool can_be_in_place(const Block & block, const InPlace & how) {
    const int64_t rows = block.input->ne[1] * block.input->ne[2];
    return how.numbers != nullptr && rows <= most_rows_in_place && n_expert_of(block) <= InPlace::n_numbers &&
           block.input->type == GGML_TYPE_F32 && block.out->type == GGML_TYPE_F32 && ggml_is_contiguous(block.input);
}

// Adds a node that multiplies the later block's router with the input of the earlier block's router. If this input is
// the block's, the node is the last of the dense nodes. Otherwise it stands before the earlier router's own product,
// since the input's memory may be used again after it.
void add_foresight(ggml_context * ctx, SplitBlock & from, SplitBlock & to, const Staging & s,
                   ggml_backend_buffer_t device, const InPlace & how) {
    const Block & block  = from.block;
    const Router  router = to.block.splittable ? router_of(to.block) : Router{};
    const Router  own    = router.own_input ? router_of(block) : Router{};
    if (router.weight == nullptr || from.before.nodes.empty() || !foresees(block) || from.layer < 0 || to.layer < 0 ||
        from.experts != to.experts || own.own_input != router.own_input || to.n_expert != from.n_expert ||
        router.weight->ne[1] != to.n_expert || to.block.n_tokens() != block.n_tokens() ||
        ggml_backend_buffer_get_type(router.weight->buffer) != ggml_backend_buffer_get_type(device)) {
        return;
    }
    const ggml_tensor * read = own.own_input ? own.product->src[1] : block.input;
    if (router.weight->ne[0] != read->ne[0]) {
        return;
    }
    ggml_tensor * input    = leaf(ctx, GGML_TYPE_F32, {read->ne[0], block.n_tokens()}, read->data, read->buffer);
    ggml_tensor * scores   = ggml_mul_mat(ctx, const_cast<ggml_tensor *>(router.weight), input);
    const bool    straight = from.in_place && block.n_tokens() <= most_written_straight;
    scores->data           = straight ? static_cast<void *>(s.host_scores) : s.scores;
    scores->buffer         = straight ? how.host : device;
    scores->flags |= GGML_TENSOR_FLAG_COMPUTE;
    if (!add_node(from.predicting_before, scores, own.product)) {
        return;
    }
    if (!from.predicting_joined.nodes.empty()) {
        add_node(from.predicting_joined, scores, own.product);
    }
    from.foresight.reset(new Foresight{&to, scores, Chooser(router)});
}

// Adds kernels that write a block's ids, input and scores to the host's staging. They are lookups by 0, 1, 2, ….
void hand_off_in_place(ggml_context * ctx, SplitBlock & b, const Staging & s, const InPlace & how) {
    const Block &              block = b.block;
    const ggml_tensor &        n     = *how.numbers;
    const int64_t              rows = block.input->ne[1] * block.input->ne[2], width = block.input->ne[0];
    std::vector<ggml_tensor *> nodes;
    ggml_tensor *              table = table_leaf(ctx, GGML_TYPE_I32, b.n_expert, block.n_tokens(), n.data, n.buffer);
    nodes.push_back(lookup(ctx, table, block.ids, s.ids, how.host));
    nodes.back()->nb[2] = block.ids->nb[1]; // the graph's stride between tokens
    nodes.back()->nb[3] = nodes.back()->nb[2] * nodes.back()->ne[2];
    const auto copy     = [&](int64_t n_row, int64_t n_column, void * from, ggml_backend_buffer_t of, void * to) {
        ggml_tensor * all = leaf(ctx, GGML_TYPE_F32, {n_column, n_row}, from, of);
        ggml_tensor * ids = leaf(ctx, GGML_TYPE_I32, {n_row}, n.data, n.buffer);
        nodes.push_back(lookup(ctx, all, ids, to, how.host));
    };
    copy(rows, width, block.input->data, block.input->buffer, s.input);
    if (b.foresight && b.foresight->scores->buffer != how.host) {
        const ggml_tensor & scores = *b.foresight->scores;
        copy(block.n_tokens(), b.n_expert, scores.data, scores.buffer, s.host_scores);
    }
    for (Part * part : {&b.predicting_before, &b.predicting_joined}) {
        if (!part->nodes.empty()) {
            part->nodes.insert(part->nodes.end(), nodes.begin(), nodes.end());
        }
    }
}

} // namespace

StagingSize staging_size(const std::vector<Block> & blocks) {
    StagingSize size;
    for (const Block & block : blocks) {
        Arena host, device;
        lay_out(block, host, device);
        size.host   = std::max(size.host, host.used() + (block.is_staged ? chain_bytes(block) : 0));
        size.device = std::max(size.device, device.used());
    }
    Arena late;
    late.take(late_bytes(blocks));
    size.host += late.used();
    return size;
}

SplitGraph::SplitGraph(const ggml_cgraph * graph)
    : image(graph), uid(graph->uid), n_nodes(graph->n_nodes), first(graph->n_nodes > 0 ? graph->nodes[0] : nullptr) {}

std::unique_ptr<SplitGraph> prepare(const ggml_cgraph * graph, std::vector<Block> blocks, void * host,
                                    ggml_backend_buffer_t device, int distance, const InPlace & how) {
    auto g           = std::make_unique<SplitGraph>(graph);
    g->distance      = distance;
    g->in_place      = how.numbers != nullptr;
    size_t n_tensors = 1, overhead = 0;
    for (const Block & block : blocks) {
        g->is_staged = g->is_staged && block.is_staged;
        n_tensors += block.chain.size() + 3 * block.scales.size() + 24;
        overhead += ggml_graph_overhead_custom(block.chain.size() + block.scales.size(), false);
    }
    g->ctx.reset(ggml_init({(n_tensors + 1) * ggml_tensor_overhead() + overhead, nullptr, true}));

    Arena  whole(host);
    char * late  = whole.take(late_bytes(blocks));
    char * rest  = whole.take(0); // the memory that blocks share
    int    next  = 0;
    bool   noted = false;
    for (Block & block : blocks) {
        auto b      = std::make_unique<SplitBlock>();
        b->ids_span = span(block.ids);
        b->late_ids = late;
        late += block.is_staged ? b->ids_span : 0;
        const int begin = std::exchange(next, block.last + 1);
        take_dense(g->ctx.get(), graph->nodes + begin, graph->nodes + block.first, b->before);
        b->experts  = experts_of(block.weights.front());
        b->n_expert = n_expert_of(block);
        if (block.splittable) {
            b->layer = b->experts->find_or_add_layer(block.weights, block.n_used());
            if (b->layer < 0) {
                b->experts->note_unsplit(block.weights.front()->name, ModelExperts::Unsplit::late);
                g->met_late = true;
            }
        } else {
            if (!noted) { // an adapter's own weights follow those that it is applied to, and need no message
                b->experts->note_unsplit(block.weights.front()->name, ModelExperts::Unsplit::chain);
            }
            noted = true;
        }
        b->block    = std::move(block);
        g->n_tokens = std::max(g->n_tokens, b->block.n_tokens());

        Arena         host_arena(rest), device_arena(ggml_backend_buffer_get_base(device));
        const Staging staging = lay_out(b->block, host_arena, device_arena);
        g->staging.push_back(staging);
        if (b->block.is_staged) {
            b->in_place = !b->before.nodes.empty() && can_be_in_place(b->block, how);
            make_host_part(g->ctx.get(), *b, staging, host_arena);
            make_join(g->ctx.get(), *b, staging, device, how.host);
        }
        // Separate parts, each behind its own first node, since CUDA keeps one graph per first node.
        take_dense(g->ctx.get(), graph->nodes + begin, graph->nodes + b->block.first, b->predicting_before);
        if (!g->blocks.empty() && g->blocks.back()->join != nullptr) {
            SplitBlock & last = *g->blocks.back();
            join_and(last.join, b->before, b->joined);
            join_and(copy_join(g->ctx.get(), last), b->predicting_before, b->predicting_joined);
        }
        g->blocks.push_back(std::move(b));
    }
    for (size_t i = 0; distance > 0 && i + distance < g->blocks.size(); ++i) {
        add_foresight(g->ctx.get(), *g->blocks[i], *g->blocks[i + distance], g->staging[i], device, how);
    }
    for (size_t i = 0; i < g->blocks.size(); ++i) {
        if (g->blocks[i]->in_place) {
            hand_off_in_place(g->ctx.get(), *g->blocks[i], g->staging[i], how);
        }
    }
    take_dense(g->ctx.get(), graph->nodes + next, graph->nodes + graph->n_nodes, g->tail);
    if (!g->blocks.empty() && g->blocks.back()->join != nullptr) {
        join_and(g->blocks.back()->join, g->tail, g->joined_tail);
    }
    return g;
}

} // namespace spac
