// Draft passes, in which a model drafts for itself: each graph runs wholly on the device, and no block is handed over.
#include "backend/experts/draft_copies.h"
#include "backend/graph/split_graph.h"
#include "backend/split/split_stream.h"
#include "core/error.h"

#include <memory>

namespace spac {
namespace {

// Makes the nodes of a block's draft pass unless they exist for these copies. Returns false if they have to be made,
// and `can_replace` is false because launches under way may read the older ones. Throws DeviceError if the block has a
// weight without a copy.
bool prepare_draft(SplitBlock & b, const std::shared_ptr<const DraftCopies> & copies, bool can_replace) {
    if (b.draft_copies.lock() == copies) {
        return true;
    }
    if (b.draft_ctx != nullptr && !can_replace) {
        return false;
    }
    NodeMap map;
    for (const ggml_tensor * weight : b.block.weights) {
        ggml_tensor * const copy = copies->of(weight);
        if (copy == nullptr) {
            throw DeviceError(std::string(weight->name) + " has no low-bit copy: this model cannot draft for itself " +
                              "with adapters on its experts");
        }
        map[weight] = copy;
    }
    const size_t n_tensors = b.block.chain.size() + 1;
    b.draft_ctx.reset(
        ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead_custom(n_tensors, false), nullptr, true}));
    b.draft_nodes = {};
    for (const ggml_tensor * node : b.block.chain) {
        b.draft_nodes.nodes.push_back(copy_node(b.draft_ctx.get(), node, map));
    }
    b.draft_nodes.uses = count_uses(b.draft_ctx.get(), b.draft_nodes.nodes);
    b.draft_nodes.fix();
    b.draft_copies = copies;
    return true;
}

} // namespace

ggml_status SplitStream::run_draft(SplitGraph & g, const ggml_cgraph * graph) {
    ModelExperts & experts = *g.blocks.front()->experts;
    const auto     copies  = experts.draft_copies();
    if (copies == nullptr) {
        throw DeviceError("the model is gone, and its low-bit copies with it");
    }
    bool counted = false;
    loads_       = false;
    stream_.hold(copies);
    for (const auto & block : g.blocks) {
        SplitBlock & b = *block;
        if (abort_ != nullptr && abort_(abort_data_)) {
            return GGML_STATUS_ABORTED;
        }
        const bool counts =
            b.layer >= 0 && b.block.is_staged && experts.draft_demand.counts(b.block.n_used(), g.n_tokens, b.n_expert);
        const ggml_status status = run_on_copies(b, copies, graph, counts);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        counted = counted || counts;
    }
    if (counted) {
        experts.draft_demand.end_step();
    }
    return stream_.launch(*g.blocks.back(), g.tail, graph);
}

ggml_status SplitStream::run_on_copies(SplitBlock & b, const std::shared_ptr<const DraftCopies> & copies,
                                       const ggml_cgraph * graph, bool counts) {
    if (!prepare_draft(b, copies, false)) {
        finish_queued();
        prepare_draft(b, copies, true);
    }
    const ggml_status status = stream_.launch(b, b.before, graph);
    if (counts) {
        fetch_late(b, b.experts->draft_demand, nullptr, true);
    }
    return status == GGML_STATUS_SUCCESS ? stream_.launch(b, b.draft_nodes, graph) : status;
}

} // namespace spac
