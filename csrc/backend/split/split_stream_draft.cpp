// Draft passes, in which a model drafts for itself: each graph runs wholly on the device, and no block is handed over.
#include "backend/split/draft_part.h"
#include "backend/split/split_stream.h"
#include "core/error.h"

#include <cstring>

namespace spac {

ggml_status SplitStream::run_draft(SplitGraph & g, const ggml_cgraph * graph) {
    ModelExperts & experts = *g.blocks.front()->experts;
    const bool     copied  = experts.draft_pass() == DraftPass::copies;
    const auto     copies  = copied ? experts.draft_copies() : nullptr;
    if (copied && copies == nullptr) {
        throw DeviceError("the model is gone, and its low-bit copies with it");
    }
    bool counted = false;
    loads_       = false;
    stream_.hold(copies);
    residents_.begin();
    for (size_t i = 0; i < g.blocks.size(); ++i) {
        SplitBlock & b = *g.blocks[i];
        if (abort_ != nullptr && abort_(abort_data_)) {
            return GGML_STATUS_ABORTED;
        }
        const bool counts =
            b.layer >= 0 && b.block.is_staged && experts.draft_demand.counts(b.block.n_used(), g.n_tokens, b.n_expert);
        const ggml_status status =
            copied ? run_on_copies(b, copies, graph, counts) : run_on_residents(b, g.staging[i], graph, counts);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        counted = counted || counts;
    }
    if (counted) {
        experts.draft_demand.end_step();
    }
    residents_.fetch(g);
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

ggml_status SplitStream::run_on_residents(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts) {
    const auto        now    = b.experts->snapshot(b.layer);
    const Side        side   = side_of(b, s, now);
    const ggml_status status = residents_.launch_before(b, now.mask.get(), graph, counts);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (side == Side::host) { // no expert is resident: the block's output is zero
        memset(b.host_out->data, 0, ggml_nbytes(b.block.out));
        stream_.send(b, b.block.out, b.host_out->data, ggml_nbytes(b.block.out));
        return status;
    }
    if (b.slot_lookup == nullptr) {
        throw DeviceError(std::string(ggml_backend_dev_name(stream_.device())) +
                          " has no kernels that read masks of ids: choose another --draft-type");
    }
    return device_.launch(b, s, now.mask, graph);
}

} // namespace spac
