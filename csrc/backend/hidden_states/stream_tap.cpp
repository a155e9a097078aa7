#include "backend/hidden_states/stream_tap.h"

#include "backend/device/capabilities.h"
#include "backend/device/settings.h"
#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "core/error.h"

#include <algorithm>

namespace spac {
namespace {

// Most graphs of one token that are kept. A new one comes whenever the context has grown by some hundred tokens, and
// when the number of layers changes.
constexpr size_t max_graphs = 6;

thread_local std::shared_ptr<Tap> open_tap;

// Returns why a router cannot be asked, or an empty string.
std::string fault_of(const Router * router, const Question & question, int n_layer, int n_embd,
                     ggml_backend_dev_t device) {
    if (router == nullptr) {
        return "it is not one matrix";
    }
    if (device != nullptr && router->weight->ne[0] != n_embd) {
        return "its input is " + std::to_string(router->weight->ne[0]) + " wide";
    }
    if (question.n_chosen < 1 || question.n_chosen > router->weight->ne[1]) {
        return "it cannot choose " + std::to_string(question.n_chosen) + " experts";
    }
    if (question.input < 0 || (device != nullptr && question.input >= n_layer)) {
        return "the draft has no such layer";
    }
    if (device != nullptr &&
        ggml_backend_buffer_get_type(router->weight->buffer) != ggml_backend_dev_buffer_type(device)) {
        return "it is not on the draft's device";
    }
    return "";
}

Predictions::Row row_of(const ModelExperts & target, const Question & question, int n_layer, int n_embd,
                        ggml_backend_dev_t device) {
    auto              router = target.router(question.layer);
    const std::string fault  = fault_of(router.get(), question, n_layer, n_embd, device);
    if (!fault.empty()) {
        throw InputError("the router of MoE layer " + std::to_string(question.layer) + " cannot be asked: " + fault);
    }
    const int n_expert = static_cast<int>(router->weight->ne[1]);
    return {question, router, Chooser(*router), n_expert, nullptr};
}

} // namespace

std::shared_ptr<Tap> new_tap() { return std::make_shared<StreamTap>(); }

TapScope::TapScope(std::shared_ptr<Tap> tap) : outer_(std::move(tap)) { outer_.swap(open_tap); }

TapScope::~TapScope() { outer_.swap(open_tap); }

std::shared_ptr<StreamTap> tap_for_context() { return std::static_pointer_cast<StreamTap>(open_tap); }

// ---- Tap

void StreamTap::ask(std::shared_ptr<Experts> target, const std::vector<Question> & questions) {
    std::vector<Predictions::Row> rows;
    size_t                        row_bytes = row_bytes_;
    for (const Question & question : questions) {
        rows.push_back(row_of(static_cast<const ModelExperts &>(*target), question, n_layer_, n_embd_, device_));
        row_bytes = std::max(row_bytes, sizeof(float) * static_cast<size_t>(rows.back().n_expert));
    }
    const auto & before = predictions_.rows();
    const auto   n      = static_cast<std::ptrdiff_t>(std::min(rows.size(), before.size()));
    const bool   same = std::equal(rows.begin(), rows.begin() + n, before.begin(), [](const auto & a, const auto & b) {
        return a.router == b.router && a.question.input == b.question.input;
    });
    // Graphs for fewer or more layers of the same target are kept: their number may change from draft to draft.
    if (target != target_ || !same) {
        forget();
    }
    target_   = std::move(target);
    untapped_ = 0;
    allocate(rows.empty() ? 0 : std::max<size_t>(rows.size(), static_cast<size_t>(n_layer_)), row_bytes);
    for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].products = reinterpret_cast<float *>(static_cast<char *>(ggml_backend_buffer_get_base(memory_.get())) +
                                                     i * row_bytes_);
    }
    if (!on_device()) {
        load(rows);
    }
    predictions_.set(std::move(rows), memory_);
}

// Makes room for the products of so many layers.
void StreamTap::allocate(size_t n_rows, size_t row_bytes) {
    const size_t bytes = n_rows * row_bytes;
    if (n_rows == 0 || (memory_ && row_bytes == row_bytes_ && bytes <= ggml_backend_buffer_get_size(memory_.get()))) {
        return;
    }
    forget();
    row_bytes_                        = row_bytes;
    ggml_backend_buffer_type_t pinned = on_device() ? ggml_backend_dev_host_buffer_type(device_) : nullptr;
    memory_.reset(ggml_backend_buft_alloc_buffer(pinned != nullptr ? pinned : ggml_backend_cpu_buffer_type(), bytes),
                  [](ggml_backend_buffer_t buffer) { ggml_backend_buffer_free(buffer); });
    straight_ = on_device() && hand_over_in_place().value_or(true) && capabilities_of(device_).reaches_host &&
                pinned != nullptr && memory_ && ggml_backend_buffer_get_type(memory_.get()) == pinned;
    if (on_device() && !straight_) {
        device_memory_.reset(ggml_backend_buft_alloc_buffer(ggml_backend_dev_buffer_type(device_), bytes));
    }
    if (!memory_ || (on_device() && !straight_ && !device_memory_)) {
        memory_.reset();
        throw MemoryError("no room for " + std::to_string(bytes >> 10) +
                          " KiB of a draft's predictions: use fewer slots");
    }
    if (device_memory_) {
        ggml_backend_buffer_set_usage(device_memory_.get(), GGML_BACKEND_BUFFER_USAGE_COMPUTE);
        ctx_.reset(ggml_init({ggml_tensor_overhead(), nullptr, true}));
        all_products_ = leaf(ctx_.get(), GGML_TYPE_F32, {static_cast<int64_t>(bytes / sizeof(float))},
                             ggml_backend_buffer_get_base(device_memory_.get()), device_memory_.get());
    }
}

// Drops everything that was made for the questions so far.
void StreamTap::forget() {
    graphs_.clear();
    host_rows_.clear();
}

// ---- the stream's side

void StreamTap::plan(const ComputeStream & stream, const ggml_cgraph * graph) {
    const std::vector<ggml_tensor *> inputs = find_ffn_inputs(graph);
    const auto same = [&](const ggml_tensor * input) { return input->ne[0] == inputs.front()->ne[0]; };
    if (static_cast<int>(inputs.size()) > n_layer_ && target_ == nullptr &&
        std::all_of(inputs.begin(), inputs.end(), same)) {
        device_  = stream.device();
        n_layer_ = static_cast<int>(inputs.size());
        n_embd_  = static_cast<int>(inputs.front()->ne[0]);
    }
}

void StreamTap::end() {
    predictions_.set({}, nullptr);
    predictions_.stop();
    forget();
    n_layer_ = n_embd_ = 0;
    target_.reset();
    ctx_.reset();
    device_memory_.reset();
    memory_.reset();
}

ggml_status StreamTap::compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run) {
    if (predictions_.is_under_way()) { // nobody has read this token's logits: kernels may still write its products
        stream.synchronize();
        predictions_.end(false);
    }
    Tapped * const t = predictions_.rows().empty() ? nullptr : tapped(stream, graph);
    if (t == nullptr) {
        return run(graph);
    }
    ggml_cgraph with = *graph;
    with.size = with.n_nodes = static_cast<int>(t->nodes.size());
    with.nodes               = t->nodes.data();
    with.uid                 = t->uid;
    predictions_.begin();
    const ggml_status status = run(&with);
    if (status != GGML_STATUS_SUCCESS) {
        predictions_.end(false);
    } else if (!straight_) {
        ggml_backend_tensor_get_async(stream.backend(), all_products_, ggml_backend_buffer_get_base(memory_.get()), 0,
                                      t->n_rows * row_bytes_);
    }
    return status;
}

// Returns the form of a graph with the tap's nodes, and makes it if the graph is new. It is null for graphs that are
// not tapped.
StreamTap::Tapped * StreamTap::tapped(ComputeStream & stream, const ggml_cgraph * graph) {
    if (graph->uid == 0 || graph->uid == untapped_) {
        return nullptr;
    }
    ++n_asked_;
    const size_t n_rows = predictions_.rows().size();
    auto         known  = std::find_if(graphs_.begin(), graphs_.end(),
                                       [&](auto & t) { return t->n_rows == n_rows && t->source == graph->uid; });
    if (known == graphs_.end()) {
        known = std::find_if(graphs_.begin(), graphs_.end(),
                             [&](auto & t) { return t->n_rows == n_rows && t->image.matches(graph); });
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
    const auto & rows = predictions_.rows();
    auto         t    = std::make_unique<Tapped>(graph);
    t->used           = n_asked_;
    t->n_rows         = rows.size();
    t->ctx.reset(ggml_init({rows.size() * ggml_tensor_overhead(), nullptr, true}));
    for (int i = 0; i < graph->n_nodes; ++i) {
        ggml_tensor * node = graph->nodes[i];
        t->nodes.push_back(node);
        for (size_t r = 0; r < rows.size(); ++r) {
            if (inputs[static_cast<size_t>(rows[r].question.input)] == node) {
                ggml_tensor * product =
                    ggml_mul_mat(t->ctx.get(), const_cast<ggml_tensor *>(rows[r].router->weight), node);
                product->data   = straight_ ? static_cast<void *>(rows[r].products)
                                            : static_cast<char *>(all_products_->data) + r * row_bytes_;
                product->buffer = straight_ ? memory_.get() : device_memory_.get();
                product->flags |= GGML_TENSOR_FLAG_COMPUTE;
                t->nodes.push_back(product);
            }
        }
    }
    graphs_.push_back(std::move(t));
    return graphs_.back().get();
}

} // namespace spac
