#include "backend/split/resident_draft.h"

#include "backend/experts/model_experts.h"
#include "backend/graph/nodes.h"
#include "core/error.h"

#include <algorithm>
#include <limits>

namespace spac {
namespace {

// Low enough that no router chooses the expert while it has another one. It is finite, so that no sum is undefined.
constexpr float hidden = -1e30F;

} // namespace

float * ResidentDraft::Rows::host_added(int il) const {
    return static_cast<float *>(ggml_backend_buffer_get_base(host.get())) + il * added->ne[0];
}

float * ResidentDraft::Rows::host_products(int il) const {
    return host_added(static_cast<int>(added->ne[1])) + il * added->ne[0];
}

void ResidentDraft::make_rows(const SplitBlock & b) {
    if (rows_.experts != nullptr) {
        SPAC_CHECK(rows_.experts == b.experts, b.layer); // a context has one model
        return;
    }
    const int n_layer  = b.experts->n_layer();
    const int n_expert = b.experts->n_expert();
    rows_.ctx.reset(ggml_init({3 * ggml_tensor_overhead(), nullptr, true}));
    rows_.added    = ggml_new_tensor_2d(rows_.ctx.get(), GGML_TYPE_F32, n_expert, n_layer);
    rows_.products = ggml_new_tensor_2d(rows_.ctx.get(), GGML_TYPE_F32, n_expert, n_layer);
    rows_.host     = stream_.host_buffer(2 * ggml_nbytes(rows_.added));
    rows_.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(rows_.ctx.get(), stream_.buffer_type()));
    if (!rows_.buffer || !rows_.host) {
        throw DeviceError(std::string(ggml_backend_dev_name(stream_.device())) +
                          " has no room for the draft's router rows: use fewer slots");
    }
    ggml_backend_buffer_clear(rows_.buffer.get(), 0);
    rows_.versions.assign(static_cast<size_t>(n_layer), std::numeric_limits<uint64_t>::max());
    rows_.experts = b.experts;
}

// Makes the dense nodes before the block once more, with two nodes behind the router's product: a copy of it, and the
// sum in its place.
void ResidentDraft::prepare(SplitBlock & b) {
    if (b.resident_ctx != nullptr) {
        return;
    }
    const Router router = b.block.splittable && b.layer >= 0 ? router_of(b.block) : Router{};
    const auto   at     = std::find(b.before.nodes.begin(), b.before.nodes.end(), router.product);
    if (router.product == nullptr || at == b.before.nodes.end() || b.block.n_tokens() != 1) {
        throw DeviceError(std::string(b.block.weights.front()->name) + ": the router before it is of a kind that " +
                          "resident experts cannot draft with: choose another --draft-type");
    }
    b.resident_ctx.reset(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
    ggml_context * const ctx   = b.resident_ctx.get();
    auto * const         found = const_cast<ggml_tensor *>(router.product);
    const auto           row   = [&](ggml_tensor * rows) {
        char * const data = static_cast<char *>(rows->data) + b.layer * rows->nb[1];
        return leaf(ctx, GGML_TYPE_F32, {b.n_expert}, data, rows->buffer);
    };
    ggml_tensor * const products = leaf(ctx, GGML_TYPE_F32, {b.n_expert}, found->data, found->buffer);
    ggml_tensor * const kept     = ggml_cpy(ctx, products, row(rows_.products));
    ggml_tensor * const sum      = ggml_add_inplace(ctx, products, row(rows_.added));
    for (ggml_tensor * node : {kept, sum}) {
        node->data   = node->view_src->data;
        node->buffer = node->view_src->buffer;
        node->flags |= GGML_TENSOR_FLAG_COMPUTE;
    }
    ggml_tensor * const first = leaf(ctx, GGML_TYPE_F32, {1}, b.before.nodes.front()->data, found->buffer);
    b.resident_before.nodes   = {first};
    b.resident_before.nodes.insert(b.resident_before.nodes.end(), b.before.nodes.begin() + 1, at + 1);
    b.resident_before.nodes.insert(b.resident_before.nodes.end(), {kept, sum});
    b.resident_before.nodes.insert(b.resident_before.nodes.end(), at + 1, b.before.nodes.end());
    b.resident_before.fix();
    b.chooser = std::make_unique<Chooser>(router);
}

void ResidentDraft::send_row(const SplitBlock & b, const Mask * mask) {
    const uint64_t version = mask != nullptr ? mask->version : 0;
    if (rows_.versions[b.layer] == version) {
        return;
    }
    // Graphs of draft passes are waited for, so the copy of this row that was queued before has ended.
    float * const row  = rows_.host_added(b.layer);
    const bool    none = mask == nullptr || mask->none();
    for (int e = 0; e < b.n_expert; ++e) {
        row[e] = none || mask->slot_of[e] >= 0 ? 0 : hidden; // without residents, the block's output is zero anyway
    }
    rows_.versions[b.layer] = version;
    ggml_tensor to          = *rows_.added;
    to.data                 = static_cast<char *>(to.data) + b.layer * to.nb[1];
    stream_.send(b, &to, row, sizeof(float) * b.n_expert);
}

ggml_status ResidentDraft::launch_before(SplitBlock & b, const Mask * mask, const ggml_cgraph * graph, bool counts) {
    make_rows(b);
    prepare(b);
    send_row(b, mask);
    if (counts) {
        pending_.push_back(&b);
    }
    return stream_.launch(b, b.resident_before, graph);
}

void ResidentDraft::fetch(const SplitGraph & g) {
    if (pending_.empty()) {
        return;
    }
    fetched_.swap(pending_);
    stream_.fetch(*g.blocks.back(), rows_.products, rows_.host_products(0), ggml_nbytes(rows_.products));
}

void ResidentDraft::count() {
    for (SplitBlock * b : fetched_) {
        std::vector<int32_t> ids(static_cast<size_t>(b->block.n_used()));
        std::vector<float>   shares(ids.size());
        b->chooser->choose(rows_.host_products(b->layer), b->n_expert, b->block.n_used(), ids.data(), shares.data(),
                           b->block.n_used());
        b->experts->draft_demand.count(b->layer, ids.data(), ids.size() * sizeof(int32_t), b->block.n_used(), 1,
                                       b->n_expert, nullptr, nullptr, shares.data());
    }
    fetched_.clear();
}

} // namespace spac
