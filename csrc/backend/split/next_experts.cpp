#include "backend/split/next_experts.h"

#include "backend/experts/model_experts.h"
#include "core/error.h"

#include <algorithm>
#include <cstring>

namespace spac {
namespace {

// Returns true if the router's matrix can be copied and asked with the input of blocks.
bool can_ask(const Router * router, const SplitBlock & b) {
    return router != nullptr && router->weight != nullptr && !router->own_input &&
           router->weight->ne[1] == b.n_expert && router->weight->ne[0] == b.block.input->ne[0] &&
           ggml_nrows(router->weight) == b.n_expert &&
           (router->weight->type == GGML_TYPE_F32 || ggml_get_type_traits(router->weight->type)->to_float != nullptr);
}

} // namespace

NextExperts::Table::Table(const Router & router)
    : chooser(router), width(router.weight->ne[0]), n_expert(router.weight->ne[1]) {
    const std::vector<float> values = matrix_of(router);
    const ggml_type          type   = width % ggml_blck_size(GGML_TYPE_Q8_0) == 0 ? GGML_TYPE_Q8_0 : GGML_TYPE_F32;
    bytes.resize(ggml_row_size(type, width) * static_cast<size_t>(n_expert));
    if (type == GGML_TYPE_F32) {
        memcpy(bytes.data(), values.data(), bytes.size());
    } else {
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_expert, width, nullptr);
    }
    const size_t per_graph = 3 * ggml_tensor_overhead() + ggml_graph_overhead_custom(4, false);
    ctx.reset(ggml_init({ggml_tensor_overhead() + most_tokens * per_graph, nullptr, true}));
    if (!ctx) {
        throw MemoryError("no memory for the graphs of a router");
    }
    weight       = ggml_new_tensor_2d(ctx.get(), type, width, n_expert);
    weight->data = bytes.data();
}

ggml_cgraph * NextExperts::Table::graph_of(int n_tokens) {
    ggml_cgraph *& graph = graphs[static_cast<size_t>(n_tokens)];
    if (graph == nullptr) {
        ggml_tensor * input = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, width, n_tokens);
        graph               = ggml_new_graph_custom(ctx.get(), 4, false);
        ggml_build_forward_expand(graph, ggml_mul_mat(ctx.get(), weight, input));
    }
    return graph;
}

void NextExperts::begin(const SplitGraph & g) {
    n_tokens_ = 0;
    for (const auto & b : g.blocks) {
        if (b->layer >= 0 && b->block.n_tokens() <= most_tokens && tables_.find(b->layer) == tables_.end()) {
            const auto router = b->experts->router(b->layer);
            tables_[b->layer] = can_ask(router.get(), *b) ? std::make_unique<Table>(*router) : nullptr;
        }
    }
}

void NextExperts::keep(const SplitBlock & b, const Staging & s) {
    const ggml_tensor * input = b.block.input;
    n_tokens_                 = 0;
    if (b.block.n_tokens() > most_tokens || input->type != GGML_TYPE_F32 || input->ne[1] != 1 ||
        !ggml_is_contiguous(input)) {
        return;
    }
    n_tokens_       = b.block.n_tokens();
    width_          = input->ne[0];
    const auto * at = reinterpret_cast<const float *>(s.input);
    input_.assign(at, at + width_ * n_tokens_);
}

const std::vector<int32_t> & NextExperts::foretell(ggml_backend_t cpu, const SplitBlock & b) {
    foretold_.clear();
    const auto found = tables_.find(b.layer);
    if (n_tokens_ == 0 || b.block.n_tokens() != n_tokens_ || found == tables_.end() || found->second == nullptr ||
        found->second->width != width_) {
        return foretold_;
    }
    Table &            table  = *found->second;
    ggml_cgraph *      graph  = table.graph_of(n_tokens_);
    ggml_tensor *      out    = ggml_graph_node(graph, -1);
    const auto         n      = static_cast<size_t>(n_tokens_);
    const auto         n_used = static_cast<size_t>(b.block.n_used());
    std::vector<float> scores(n * static_cast<size_t>(table.n_expert));
    out->src[1]->data = input_.data();
    out->data         = scores.data();
    if (ggml_backend_graph_compute(cpu, graph) != GGML_STATUS_SUCCESS) {
        return foretold_;
    }
    chosen_.resize(n * n_used);
    for (size_t t = 0; t < n; ++t) {
        table.chooser.choose(scores.data() + t * static_cast<size_t>(table.n_expert), b.n_expert, b.block.n_used(),
                             chosen_.data() + t * n_used);
    }
    for (size_t place = 0; place < n_used; ++place) {
        for (size_t t = 0; t < n; ++t) {
            const int32_t id = chosen_[t * n_used + place];
            if (std::find(foretold_.begin(), foretold_.end(), id) == foretold_.end()) {
                foretold_.push_back(id);
            }
        }
    }
    return foretold_;
}

} // namespace spac
