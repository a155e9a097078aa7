#include "backend/hidden_states/stream_tap.h"

#include "backend/graph/nodes.h"
#include "backend/hidden_states/tap_points.h"
#include "core/error.h"

#include <algorithm>

namespace spac {
namespace {

// Most graphs of one token that are kept. A new one comes whenever the context has grown by some hundred tokens.
constexpr size_t max_graphs = 4;

thread_local std::shared_ptr<Tap> open_tap;

} // namespace

std::shared_ptr<Tap> new_tap() { return std::make_shared<StreamTap>(); }

TapScope::TapScope(std::shared_ptr<Tap> tap) : outer_(std::move(tap)) { outer_.swap(open_tap); }

TapScope::~TapScope() { outer_.swap(open_tap); }

std::shared_ptr<StreamTap> tap_for_context() { return std::static_pointer_cast<StreamTap>(open_tap); }

// ---- Tap

void StreamTap::set_on(bool on) {
    arrives_ = false;
    if (on && !rows_ && n_layer_ > 0) {
        ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device_);
        rows_.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device_), bytes()));
        states_.reset(
            ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), bytes()),
            [](ggml_backend_buffer_t buffer) { ggml_backend_buffer_free(buffer); });
        if (!rows_ || !states_) {
            rows_.reset();
            states_.reset();
            throw MemoryError(std::string("device ") + ggml_backend_dev_name(device_) + " has no room for " +
                              std::to_string(bytes() >> 10) + " KiB of a draft's states: use fewer slots");
        }
        ggml_backend_buffer_set_usage(rows_.get(), GGML_BACKEND_BUFFER_USAGE_COMPUTE);
        ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, true}));
        all_rows_ = leaf(ctx_.get(), GGML_TYPE_F32, {n_embd_, n_layer_}, ggml_backend_buffer_get_base(rows_.get()),
                         rows_.get());
    }
    on_ = on;
}

std::shared_ptr<const float> StreamTap::states() const {
    return arrives_ ? std::shared_ptr<const float>(
                          states_, static_cast<const float *>(ggml_backend_buffer_get_base(states_.get())))
                    : nullptr;
}

// ---- the stream's side

void StreamTap::plan(const ComputeStream & stream, const ggml_cgraph * graph) {
    const std::vector<ggml_tensor *> inputs = find_ffn_inputs(graph);
    const auto same = [&](const ggml_tensor * input) { return input->ne[0] == inputs.front()->ne[0]; };
    if (static_cast<int>(inputs.size()) > n_layer_ && !rows_ && std::all_of(inputs.begin(), inputs.end(), same)) {
        device_  = stream.device();
        n_layer_ = static_cast<int>(inputs.size());
        n_embd_  = static_cast<int>(inputs.front()->ne[0]);
    }
}

void StreamTap::end() {
    on_ = arrives_ = false;
    n_layer_ = n_embd_ = 0;
    graphs_.clear();
    ctx_.reset();
    rows_.reset();
    states_.reset(); // callers of states() may still hold the memory
}

ggml_status StreamTap::compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run) {
    arrives_         = false;
    Tapped * const t = on_ ? tapped(stream, graph) : nullptr;
    if (t == nullptr) {
        return run(graph);
    }
    ggml_cgraph with = *graph;
    with.size = with.n_nodes = static_cast<int>(t->nodes.size());
    with.nodes               = t->nodes.data();
    with.uid                 = t->uid;
    const ggml_status status = run(&with);
    if (status == GGML_STATUS_SUCCESS) {
        ggml_backend_tensor_get_async(stream.backend(), all_rows_, ggml_backend_buffer_get_base(states_.get()), 0,
                                      bytes());
        arrives_ = true;
        ++n_tapped_;
    }
    return status;
}

// Returns the form of a graph with the tap's nodes, and makes it if the graph is new. It is null for graphs that are
// not tapped.
StreamTap::Tapped * StreamTap::tapped(ComputeStream & stream, const ggml_cgraph * graph) {
    if (rows_ == nullptr || graph->uid == 0 || graph->uid == untapped_) {
        return nullptr;
    }
    ++n_asked_;
    auto known = std::find_if(graphs_.begin(), graphs_.end(), [&](auto & t) { return t->source == graph->uid; });
    if (known == graphs_.end()) {
        known = std::find_if(graphs_.begin(), graphs_.end(), [&](auto & t) { return t->image.matches(graph); });
    }
    if (known != graphs_.end()) {
        (*known)->source = graph->uid;
        (*known)->used   = n_asked_;
        return known->get();
    }
    const std::vector<ggml_tensor *> inputs = find_ffn_inputs(graph);
    if (!fits(inputs)) {
        untapped_ = graph->uid;
        return nullptr;
    }
    return add(stream, graph, inputs);
}

// Returns true if these are the inputs of all layers' FFNs for one token.
bool StreamTap::fits(const std::vector<ggml_tensor *> & inputs) const {
    return static_cast<int>(inputs.size()) == n_layer_ && std::all_of(inputs.begin(), inputs.end(), [&](auto * input) {
               return input->ne[0] == n_embd_ && input->ne[1] == 1;
           });
}

StreamTap::Tapped * StreamTap::add(ComputeStream & stream, const ggml_cgraph * graph,
                                   const std::vector<ggml_tensor *> & inputs) {
    if (graphs_.size() >= max_graphs) {
        stream.synchronize(); // launches under way read the nodes of the graph that is dropped
        graphs_.erase(
            std::min_element(graphs_.begin(), graphs_.end(), [](auto & a, auto & b) { return a->used < b->used; }));
    }
    auto t  = std::make_unique<Tapped>(graph);
    t->used = n_asked_;
    t->ctx.reset(ggml_init({2 * inputs.size() * ggml_tensor_overhead(), nullptr, true}));
    auto next = inputs.begin();
    for (int i = 0; i < graph->n_nodes; ++i) {
        t->nodes.push_back(graph->nodes[i]);
        if (next != inputs.end() && graph->nodes[i] == *next) {
            const auto    il   = static_cast<size_t>(next++ - inputs.begin());
            ggml_tensor * row  = leaf(t->ctx.get(), GGML_TYPE_F32, {n_embd_},
                                      static_cast<char *>(all_rows_->data) + il * row_bytes(), rows_.get());
            ggml_tensor * copy = ggml_cpy(t->ctx.get(), graph->nodes[i], row);
            copy->buffer       = rows_.get();
            copy->flags |= GGML_TENSOR_FLAG_COMPUTE;
            t->nodes.push_back(copy);
        }
    }
    graphs_.push_back(std::move(t));
    return graphs_.back().get();
}

} // namespace spac
