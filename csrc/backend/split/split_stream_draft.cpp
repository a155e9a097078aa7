// Draft passes, in which a model drafts for itself: each graph runs wholly on the device, and no block is handed over.
#include "backend/split/draft_part.h"
#include "backend/split/split_stream.h"
#include "core/error.h"

namespace spac {

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
