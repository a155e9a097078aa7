#include "backend/prefill/prefill_runner.h"

#include "backend/device/device.h"
#include "backend/device/timer.h"
#include "backend/experts/expert_store.h"
#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "core/error.h"

#include <algorithm>
#include <string>
#include <unordered_map>

namespace spac {
namespace {

// Returns true if kernels can read all experts of each weight as one tensor.
bool addressable(const Block & block) {
    return std::all_of(block.weights.begin(), block.weights.end(), [](const ggml_tensor * weight) {
        const ExpertWeight all{weight, 0};
        return all.n_expert() <= all.max_slots();
    });
}

// Returns true if the slots now hold all experts of the graph's layers.
bool all_resident(const SplitGraph & g) {
    return std::all_of(g.blocks.begin(), g.blocks.end(), [](const auto & b) {
        const auto now = b->experts->snapshot(b->layer);
        return now.mask != nullptr && now.mask->all();
    });
}

} // namespace

void PrefillRunner::reserve(const std::vector<Block> & blocks) {
    ggml_backend_buffer_type_t type  = stream_.buffer_type();
    size_t                     bytes = 0;
    for (const Block & block : blocks) {
        const int n_tokens = experts_of(block.weights.front())->stream_tokens();
        if (block.splittable && n_tokens > 0 && block.n_tokens() >= n_tokens) {
            bytes = std::max(bytes, stage_bytes(stages_of(block.weights, type), type));
        }
    }
    if (bytes > 0 && !refuses()) {
        make_stream(bytes, experts_of(blocks.front().weights.front()));
    }
}

bool PrefillRunner::use(SplitGraph & g, ggml_backend_buffer_t scratch) {
    end(); // an exception may have ended the last graph
    tails_.clear();
    const SplitBlock &   first    = *g.blocks.front();
    const ModelExperts & experts  = *first.experts;
    const int            n_tokens = experts.stream_tokens();
    if (n_tokens <= 0 || g.n_tokens < n_tokens ||
        experts.demand.counts(first.block.n_used(), g.n_tokens, first.n_expert) || (g.is_staged && all_resident(g)) ||
        refuses()) {
        return false;
    }
    if (g.stage_tokens != n_tokens || g.stage_generation != generation_ || !weights_) {
        stream_.synchronize(); // launches under way read the nodes that are replaced
        if (!make_stages(g, n_tokens, scratch)) {
            return false;
        }
    }
    next_ = 0;
    return !g.stages.empty();
}

void PrefillRunner::end() {
    if (weights_) {
        weights_->end();
    }
}

void PrefillRunner::note_tails() {
    for (const Tail & tail : tails_) {
        const char * ids = static_cast<const char *>(ggml_backend_buffer_get_base(tail_ids_.get())) + tail.offset;
        tail.experts->demand.note_tail(tail.layer, reinterpret_cast<const int32_t *>(ids), tail.stride, tail.n_used,
                                       tail.n_tokens);
    }
    tails_.clear();
}

// Queues the copy of the last tokens' ids, behind the router. All blocks of a graph have room in tail_ids_.
void PrefillRunner::fetch_tail(const SplitBlock & b, size_t n_blocks) {
    const int n_tokens = std::min(b.experts->demand.tail_tokens(), b.block.n_tokens());
    if (b.layer < 0 || n_tokens <= 0 || b.block.n_used() >= b.n_expert) {
        return;
    }
    const size_t stride = b.block.ids->nb[1];
    const size_t bytes  = (n_tokens - 1) * stride + b.block.n_used() * sizeof(int32_t);
    const size_t room   = n_tokens * stride;
    if (!tail_ids_ || ggml_backend_buffer_get_size(tail_ids_.get()) < n_blocks * room) {
        stream_.synchronize(); // copies under way write the memory that is replaced
        tails_.clear();
        tail_ids_ = stream_.host_buffer(n_blocks * room);
    }
    const size_t offset = tails_.empty() ? 0 : tails_.back().offset + room;
    if (!tail_ids_ || offset + room > ggml_backend_buffer_get_size(tail_ids_.get())) {
        return; // without them, decoding starts a little colder
    }
    char * ids = static_cast<char *>(ggml_backend_buffer_get_base(tail_ids_.get())) + offset;
    ggml_backend_tensor_get_async(stream_.backend(), b.block.ids, ids, (b.block.n_tokens() - n_tokens) * stride, bytes);
    tails_.push_back({b.experts, b.layer, offset, stride, b.block.n_used(), n_tokens});
}

// Returns true if the device has refused the weight stream, and has hardly more free memory now. Slots that shrink, or
// another program that ends, may have left some.
bool PrefillRunner::refuses() const { return wanted_free_ > 0 && memory_of(stream_.device()).free < wanted_free_; }

bool PrefillRunner::make_stream(size_t region_bytes, const std::shared_ptr<ModelExperts> & experts) {
    if (weights_ && weights_->region_bytes() >= region_bytes) {
        return true;
    }
    const bool again = wanted_free_ > 0; // the log has said why
    stream_.synchronize();               // launches under way read the regions that are replaced
    weights_.reset();
    held_.reset();
    std::string why;
    if (!stages_affordable(stream_.device(), region_bytes)) {
        why = std::string("the experts of a layer are too large to pass through ") +
              ggml_backend_dev_name(stream_.device());
    } else {
        try {
            weights_ = std::make_unique<WeightStream>(stream_, region_bytes);
            held_    = experts->hold_stream(stream_.device(), WeightStage::n_regions * region_bytes);
        } catch (const Error & error) {
            weights_.reset(); // its regions, if it was made
            why = error.what();
        }
    }
    wanted_free_ = weights_ ? 0 : memory_of(stream_.device()).free + region_bytes;
    if (!weights_ && !again) {
        GGML_LOG_WARN("spac: %s: prompts are split between it and the CPU\n", why.c_str());
    }
    generation_ += weights_ ? 1 : 0;
    return weights_ != nullptr;
}

bool PrefillRunner::make_stages(SplitGraph & g, int n_tokens, ggml_backend_buffer_t scratch) {
    ggml_backend_buffer_type_t type = stream_.buffer_type();
    const auto large = [&](const SplitBlock & b) { return b.block.splittable && b.block.n_tokens() >= n_tokens; };
    size_t     bytes = 0;
    for (const auto & b : g.blocks) {
        bytes = std::max(bytes, large(*b) ? stage_bytes(stages_of(b->block.weights, type), type) : 0);
    }
    if (!make_stream(bytes, g.blocks.front()->experts)) {
        return false;
    }
    g.stages.clear();
    g.stage_tokens     = n_tokens;
    g.stage_generation = generation_;
    for (size_t k = 0; k < g.blocks.size(); ++k) {
        SplitBlock & b = *g.blocks[k];
        b.stages.clear();
        if (large(b)) {
            prepare(b, g.staging[k], scratch, static_cast<int>(g.stages.size()));
            for (const WeightStage & stage : b.stages) {
                g.stages.push_back({&b, &stage});
            }
        }
    }
    return true;
}

// Makes the stages of a block, the first of them in region `region`. It makes none if the device cannot run them.
void PrefillRunner::prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, int region) {
    const Block & block = b.block;
    b.stage_head.clear();
    b.stages = stages_of(block.weights, stream_.buffer_type());
    b.stage_ctx.reset(
        ggml_init({(block.chain.size() + block.weights.size() + 4 * block.scales.size() + 1) * ggml_tensor_overhead(),
                   nullptr, true}));
    ggml_context * ctx = b.stage_ctx.get();

    NodeMap                                                map;
    std::unordered_map<const ggml_tensor *, WeightStage *> stage_of;
    for (WeightStage & stage : b.stages) {
        weights_->place(ctx, stage, region++ % WeightStage::n_regions);
        for (size_t i = 0; i < stage.weights.size(); ++i) {
            map[stage.weights[i]]      = stage.staged[i];
            stage_of[stage.weights[i]] = &stage;
        }
    }
    add_device_scales(ctx, b, s, scratch, nullptr, map, b.stage_head);
    bool can = addressable(block) &&
               std::all_of(b.stage_head.begin(), b.stage_head.end(),
                           [&](const ggml_tensor * node) { return ggml_backend_supports_op(stream_.backend(), node); });

    WeightStage * now = b.stages.empty() ? nullptr : &b.stages.front();
    for (size_t i = 0; i < block.chain.size() && can && now != nullptr; ++i) {
        const auto stage = stage_of.find(store_weight(block.chain[i]));
        now              = stage != stage_of.end() ? stage->second : now;
        now->nodes.push_back(copy_node(ctx, block.chain[i], map));
        can = ggml_backend_supports_op(stream_.backend(), now->nodes.back());
    }
    if (!can) {
        b.stages.clear();
    }
}

ggml_status PrefillRunner::run(const SplitBlock & b, const SplitGraph & g, const ggml_cgraph * graph) {
    auto &    counters = b.experts->counters;
    SpanScope block(b.experts->tracer(), Activity::layer, b.layer);
    block.span.count = b.block.n_tokens();
    const auto fill  = [&](size_t stage) {
        const Timer timer(counters.queue_ns);
        weights_->fill(*g.stages[stage].stage, *g.stages[stage].block->experts, g.stages[stage].block->layer);
    };
    if (next_ == 0) {
        fill(0);
    }
    ggml_status status = stream_.launch(b, b.before, graph);
    if (status == GGML_STATUS_SUCCESS) {
        fetch_tail(b, g.blocks.size());
        status = stream_.launch(b, b.stage_head, graph);
    }
    for (size_t i = 0; i < b.stages.size() && status == GGML_STATUS_SUCCESS; ++i) {
        weights_->wait_filled(b.stages[i], stream_);
        stream_.record_device_part(b);
        status = stream_.launch(b, b.stages[i].nodes, graph);
        weights_->note_read(b.stages[i], stream_);
        if (++next_ < g.stages.size()) {
            fill(next_); // a copy from pageable memory may wait, but the device is at work already
        }
    }
    ++counters.blocks;
    ++counters.blocks_streamed;
    return status;
}

} // namespace spac
