#include "backend/draft_head/stream_head.h"

#include "backend/graph/nodes.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace spac {
namespace {

// Most graphs of each number of tokens that are kept, as in a tap.
constexpr size_t max_graphs = 4;
// A head is shortened if it has so many times as many tokens as the short one.
constexpr int least_ratio = 2;

thread_local std::shared_ptr<ShortHead> open_head;

// Returns the product of a graph's head, which is its last node; null if another node is there.
ggml_tensor * head_of(const ggml_cgraph * graph) {
    ggml_tensor * const node = graph->n_nodes > 0 ? graph->nodes[graph->n_nodes - 1] : nullptr;
    if (node == nullptr || node->op != GGML_OP_MUL_MAT || node->type != GGML_TYPE_F32 || !ggml_is_contiguous(node)) {
        return nullptr;
    }
    const ggml_tensor * const weight = node->src[0];
    const bool whole = weight->op == GGML_OP_NONE && ggml_is_contiguous(weight) && ggml_is_matrix(weight);
    return whole && weight->buffer != nullptr && !ggml_backend_buffer_is_host(weight->buffer) ? node : nullptr;
}

} // namespace

std::shared_ptr<ShortHead> new_short_head(int n_rows, int n_tokens) {
    return std::make_shared<StreamHead>(n_rows, n_tokens);
}

ShortHeadScope::ShortHeadScope(std::shared_ptr<ShortHead> head) : outer_(std::move(head)) { outer_.swap(open_head); }

ShortHeadScope::~ShortHeadScope() { outer_.swap(open_head); }

std::shared_ptr<StreamHead> head_for_context() { return std::static_pointer_cast<StreamHead>(open_head); }

// ---- ShortHead

void StreamHead::note(const int32_t * tokens, size_t n) {
    for (size_t i = 0; i < n && rows_ != nullptr; ++i) {
        ++n_noted_;
        const auto token = static_cast<size_t>(tokens[i]);
        if (tokens[i] < 0 || token >= knows_.size() || knows_[token]) {
            continue;
        }
        int32_t & before = token_of_[static_cast<size_t>(next_row_ - n_first_)];
        if (before >= 0) {
            knows_[static_cast<size_t>(before)] = false;
        }
        write(next_row_, tokens[i]);
        before        = tokens[i];
        knows_[token] = true;
        next_row_     = next_row_ + 1 < n_rows() ? next_row_ + 1 : n_first_;
        ++n_learned_;
    }
}

void StreamHead::write(int row, int32_t token) {
    const size_t bytes = rows_->nb[1];
    copy_.resize(bytes);
    ggml_backend_tensor_get(head_, copy_.data(), static_cast<size_t>(token) * bytes, bytes);
    ggml_backend_tensor_set(rows_, copy_.data(), static_cast<size_t>(row) * bytes, bytes);
    ggml_backend_tensor_set(ids_, &token, static_cast<size_t>(row) * sizeof(token), sizeof(token));
}

// ---- the stream's side

void StreamHead::plan(ComputeStream & stream, const ggml_cgraph * graph) {
    ggml_tensor * const product = rows_ == nullptr ? head_of(graph) : nullptr;
    if (product != nullptr && product->src[0]->ne[1] >= int64_t{least_ratio} * n_wanted_ &&
        !make_rows(stream, product)) {
        end(); // the device has no memory for them, or cannot compute with them: the whole head stays in use
    }
}

bool StreamHead::make_rows(ComputeStream & stream, ggml_tensor * product) {
    ggml_tensor * const head   = product->src[0];
    const auto          room   = [](size_t bytes) { return GGML_PAD(bytes, 256); };
    const size_t        rows   = room(static_cast<size_t>(n_wanted_) * head->nb[1]);
    const size_t        ids    = room(static_cast<size_t>(n_wanted_) * sizeof(int32_t));
    const size_t        result = room(static_cast<size_t>(n_wanted_) * static_cast<size_t>(n_tokens_) * sizeof(float));
    buffer_.reset(ggml_backend_buft_alloc_buffer(stream.buffer_type(), rows + ids + result));
    if (!buffer_) {
        return false;
    }
    auto * const base = static_cast<char *>(ggml_backend_buffer_get_base(buffer_.get()));
    ctx_.reset(ggml_init({3 * ggml_tensor_overhead(), nullptr, true}));
    head_   = head;
    rows_   = leaf(ctx_.get(), head->type, {head->ne[0], n_wanted_}, base, buffer_.get());
    ids_    = leaf(ctx_.get(), GGML_TYPE_I32, {n_wanted_}, base + rows, buffer_.get());
    result_ = leaf(ctx_.get(), GGML_TYPE_F32, {1, n_wanted_, n_tokens_}, base + rows + ids, buffer_.get());

    const ggml_context_ptr     trial(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
    std::vector<ggml_tensor *> nodes;
    replace(trial.get(), product, nodes);
    if (!std::all_of(nodes.begin(), nodes.end(), [&](auto * node) {
            return node->op == GGML_OP_NONE || ggml_backend_dev_supports_op(stream.device(), node);
        })) {
        return false;
    }
    // Rows that have no token yet are copies of the first one, which changes no result.
    n_first_ = next_row_ = n_wanted_ - n_wanted_ / 8;
    std::vector<int32_t> tokens(static_cast<size_t>(n_wanted_), 0);
    std::iota(tokens.begin(), tokens.begin() + n_first_, 0);
    std::vector<uint8_t> copy(static_cast<size_t>(n_wanted_) * head->nb[1]);
    ggml_backend_tensor_get(head, copy.data(), 0, static_cast<size_t>(n_first_) * head->nb[1]);
    for (int row = n_first_; row < n_wanted_; ++row) {
        std::copy_n(copy.data(), head->nb[1], copy.data() + static_cast<size_t>(row) * head->nb[1]);
    }
    ggml_backend_tensor_set(rows_, copy.data(), 0, copy.size());
    ggml_backend_tensor_set(ids_, tokens.data(), 0, tokens.size() * sizeof(int32_t));
    token_of_.assign(static_cast<size_t>(n_wanted_ - n_first_), -1);
    knows_.assign(static_cast<size_t>(head->ne[1]), false);
    std::fill_n(knows_.begin(), n_first_, true);
    return true;
}

void StreamHead::end() {
    on_ = false;
    graphs_.clear();
    head_ = rows_ = ids_ = result_ = nullptr;
    ctx_.reset();
    buffer_.reset();
}

ggml_status StreamHead::compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run) {
    Shortened * const s = on_ ? shortened(stream, graph) : nullptr;
    if (s == nullptr) {
        return run(graph);
    }
    ggml_cgraph with = *graph;
    with.size = with.n_nodes = static_cast<int>(s->nodes.size());
    with.nodes               = s->nodes.data();
    with.uid                 = s->uid;
    return run(&with);
}

// Adds the nodes that compute the product of a graph's tokens with the short head.
void StreamHead::replace(ggml_context * ctx, ggml_tensor * product, std::vector<ggml_tensor *> & nodes) const {
    ggml_tensor * const input = product->src[1];
    const int64_t       n     = std::min<int64_t>(input->ne[1], n_tokens_);
    ggml_tensor *       few   = input;
    if (input->ne[1] != n) { // a planned graph, which may have more tokens
        few = ggml_view_2d(ctx, input, input->ne[0], n, input->nb[1], 0);
    }
    ggml_tensor * const some   = ggml_mul_mat(ctx, rows_, few);
    some->data                 = result_->data;
    some->buffer               = buffer_.get();
    ggml_tensor * const known  = leaf(ctx, GGML_TYPE_F32, {1, n_wanted_, n}, result_->data, buffer_.get());
    ggml_tensor * const all    = leaf(ctx, GGML_TYPE_F32, {1, head_->ne[1], n}, product->data, product->buffer);
    ggml_tensor * const none   = ggml_fill_inplace(ctx, all, -std::numeric_limits<float>::infinity());
    ggml_tensor * const placed = ggml_set_rows(ctx, all, known, ids_);
    for (ggml_tensor * node : {some, none, placed}) {
        if (node != some) {
            node->data   = product->data;
            node->buffer = product->buffer;
        }
        node->flags |= GGML_TENSOR_FLAG_COMPUTE;
        nodes.push_back(node);
    }
}

// Returns the form of a graph with the short head, and makes it if the graph is new. It is null for graphs with logits
// of more tokens and for graphs without the head.
StreamHead::Shortened * StreamHead::shortened(ComputeStream & stream, const ggml_cgraph * graph) {
    ggml_tensor * const product = graph->uid != 0 ? head_of(graph) : nullptr;
    if (product == nullptr || product->src[0] != head_ || product->ne[1] < 1 || product->ne[1] > n_tokens_) {
        return nullptr;
    }
    ++n_asked_;
    auto known = std::find_if(graphs_.begin(), graphs_.end(), [&](auto & s) { return s->source == graph->uid; });
    if (known == graphs_.end()) {
        known = std::find_if(graphs_.begin(), graphs_.end(), [&](auto & s) { return s->image.matches(graph); });
    }
    if (known != graphs_.end()) {
        (*known)->source = graph->uid;
        (*known)->used   = n_asked_;
        return known->get();
    }
    if (graphs_.size() >= max_graphs * static_cast<size_t>(n_tokens_)) {
        stream.synchronize(); // launches under way read the nodes of the graph that is dropped
        graphs_.erase(
            std::min_element(graphs_.begin(), graphs_.end(), [](auto & a, auto & b) { return a->used < b->used; }));
    }
    auto s  = std::make_unique<Shortened>(graph);
    s->used = n_asked_;
    s->ctx.reset(ggml_init({8 * ggml_tensor_overhead(), nullptr, true}));
    s->nodes.assign(graph->nodes, graph->nodes + graph->n_nodes - 1);
    replace(s->ctx.get(), product, s->nodes);
    graphs_.push_back(std::move(s));
    return graphs_.back().get();
}

} // namespace spac
