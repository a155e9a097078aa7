#include "backend/stream/graph_cache.h"

#include "backend/device/device.h"
#include "backend/device/settings.h"
#include "backend/experts/expert_store.h"
#include "backend/experts/model_experts.h"
#include "core/error.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace spac {
namespace {

// Most shapes in the cache: enough for a context's prompt and step shapes, with several draft lengths.
constexpr size_t max_shapes = 16;

// Returns the distance to look ahead for these blocks.
int distance_of(const SplitGraph & g) { return g.blocks.empty() ? 0 : g.blocks.front()->experts->lookahead.distance(); }

// Leaves blocks without staging that are too large for it, and whose experts are expected to stream.
void choose_staging(std::vector<Block> & blocks) {
    for (Block & block : blocks) {
        const auto experts = experts_of(block.weights.front());
        block.is_staged    = !block.splittable || block.n_tokens() <= experts->staged_tokens() ||
                          experts->stream_tokens() <= 0 || block.n_tokens() < experts->stream_tokens();
    }
}

} // namespace

bool GraphCache::is_current(const SplitGraph & g) const {
    return g.distance == distance_of(g) && g.in_place == (in_place().numbers != nullptr);
}

void GraphCache::reserve(std::vector<Block> & blocks) {
    ++n_planned_;
    choose_staging(blocks);
    reserve(staging_size(blocks));
}

SplitGraph & GraphCache::get(const ggml_cgraph * graph, bool is_staged) {
    ++n_asked_;
    if (n_planned_ > 0) {
        graphs_of_shape_ = std::exchange(n_planned_, 0);
    }
    SplitGraph * known = graph->uid != 0 ? find(graph) : nullptr;
    if (known != nullptr && (known->is_staged || !is_staged)) {
        known->uid  = graph->uid;
        known->used = n_asked_;
        return *known;
    }
    std::vector<Block> blocks = find_blocks(graph, stream_.capabilities().computes_repeats);
    // if no logits of a batch are wanted, its last layer has no rows, and devices skip such nodes
    blocks.erase(std::remove_if(blocks.begin(), blocks.end(), [](const Block & b) { return b.n_tokens() == 0; }),
                 blocks.end());
    if (!is_staged) {
        choose_staging(blocks);
    }
    reserve(staging_size(blocks));
    const auto stale = [](auto & a, auto & b) { return a->used < b->used; };
    // graphs without a uid cannot be recognized again
    const auto   outdated   = [&](auto & g) { return g->uid == 0 || !is_current(*g) || g.get() == known; };
    const size_t max_graphs = max_shapes * graphs_of_shape_;
    if (graphs_.size() >= max_graphs || std::any_of(graphs_.begin(), graphs_.end(), outdated)) {
        stream_.synchronize(); // launches under way read the tensors of graphs that are dropped
    }
    graphs_.erase(std::remove_if(graphs_.begin(), graphs_.end(), outdated), graphs_.end());
    while (graphs_.size() >= max_graphs) {
        graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(), stale));
    }
    void *    host     = host_buffer_ ? ggml_backend_buffer_get_base(host_buffer_.get()) : nullptr;
    const int distance = blocks.empty() ? 0 : experts_of(blocks.front().weights.front())->lookahead.distance();
    graphs_.push_back(prepare(graph, std::move(blocks), host, device_buffer_.get(), distance, in_place()));
    SplitGraph & g = *graphs_.back();
    g.used         = n_asked_;
    if (!g.blocks.empty()) {
        ++g.blocks.front()->experts->counters.graphs_prepared;
    }
    return g;
}

// Returns the prepared graph whose tensors are those of this one, or null.
SplitGraph * GraphCache::find(const ggml_cgraph * graph) {
    for (auto & g : graphs_) {
        if (g->uid == graph->uid && g->n_nodes == graph->n_nodes &&
            (graph->n_nodes == 0 || g->first == graph->nodes[0])) {
            return is_current(*g) ? g.get() : nullptr;
        }
    }
    for (auto & g : graphs_) {
        if (!g->met_late && g->image.matches(graph)) {
            return is_current(*g) ? g.get() : nullptr;
        }
    }
    return nullptr;
}

void GraphCache::reserve(const StagingSize & size) {
    if (size.host <= reserved_.host && size.device <= reserved_.device) {
        return;
    }
    stream_.synchronize();
    graphs_.clear(); // they point into the staging that is replaced
    reserved_.host   = std::max(reserved_.host, size.host);
    reserved_.device = std::max(reserved_.device, size.device);
    host_buffer_.reset();
    device_buffer_.reset();
    host_buffer_ = stream_.host_buffer(reserved_.host);
    device_buffer_.reset(ggml_backend_buft_alloc_buffer(stream_.buffer_type(), reserved_.device));
    if (!host_buffer_ || !device_buffer_) {
        reserved_ = {};
        throw MemoryError(std::string("device ") + ggml_backend_dev_name(stream_.device()) + " has no room for " +
                          std::to_string(size.device >> 20) + " MiB of staging: use fewer slots or a smaller batch");
    }
    ggml_backend_buffer_set_usage(device_buffer_.get(), GGML_BACKEND_BUFFER_USAGE_COMPUTE);
    make_numbers();
}

// Makes the numbers together with the staging, so that nothing is allocated between steps. Without the numbers, the
// hand-off copies.
void GraphCache::make_numbers() {
    if (numbers_ != nullptr || !stream_.capabilities().reaches_host) {
        return;
    }
    numbers_ctx_.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, true}));
    ggml_tensor * numbers = ggml_new_tensor_1d(numbers_ctx_.get(), GGML_TYPE_I32, InPlace::n_numbers);
    numbers_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(numbers_ctx_.get(), stream_.buffer_type()));
    if (numbers_buffer_) {
        std::vector<int32_t> values(InPlace::n_numbers);
        std::iota(values.begin(), values.end(), 0);
        ggml_backend_tensor_set(numbers, values.data(), 0, ggml_nbytes(numbers));
        numbers_ = numbers;
    }
}

InPlace GraphCache::in_place() const {
    const bool on = hand_over_in_place().value_or(!stream_.capabilities().shares_host_cores) && host_pinned();
    return {host_buffer_.get(), on ? numbers_ : nullptr};
}

} // namespace spac
