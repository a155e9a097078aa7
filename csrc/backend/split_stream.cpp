#include "backend/split_stream.h"

#include "backend/fault.h"
#include "backend/stand_in.h"
#include "backend/store.h"
#include "backend/timer.h"

#include <cstring>

namespace spac {

SplitStream::SplitStream(ggml_backend_dev_t device)
    : stream_(device), graphs_(stream_), host_(is_stand_in(stream_.backend())), device_(stream_), turns_(stream_) {}

SplitStream::~SplitStream() { synchronize(); }

void SplitStream::set_abort(ggml_abort_callback callback, void * data) {
    abort_      = callback;
    abort_data_ = data;
}

void SplitStream::synchronize() {
    stream_.synchronize();
    count_late();
}

void SplitStream::discover(const ggml_cgraph * graph) {
    for (const Block & block : find_blocks(graph)) {
        if (block.splittable) {
            experts_of(block.weights.front())->find_or_add_layer(block.weights, block.n_used());
        }
    }
}

ggml_status SplitStream::compute(ggml_cgraph * graph) {
    if (!late_.empty()) {
        synchronize();
    }
    SplitGraph & g = graphs_.get(graph);
    if (g.blocks.empty()) {
        return stream_.launch(graph);
    }
    const Timer timer(g.blocks.front()->experts->counters.graph_ns);
    host_.start();
    bool       counted = false;
    const bool turns   = turns_.use(g, graphs_.scratch());
    for (size_t k = 0; k < g.blocks.size(); ++k) {
        if (abort_ != nullptr && abort_(abort_data_)) {
            return GGML_STATUS_ABORTED;
        }
        SplitBlock &      b      = *g.blocks[k];
        const bool        counts = b.layer >= 0 && b.experts->demand.counts(b.block.n_used(), g.n_tokens, b.n_expert);
        const ggml_status status =
            turns && !b.turns.empty() ? turns_.run(b, g, graph) : run_block(b, g.staging[k], graph, counts);
        if (status != GGML_STATUS_SUCCESS) {
            return status;
        }
        counted = counted || counts;
    }
    if (counted) {
        g.blocks.front()->experts->demand.end_step();
    }
    return stream_.launch(*g.blocks.back(), g.tail, graph);
}

SplitStream::Side SplitStream::side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now) {
    if (now.mask == nullptr || now.mask->none()) {
        return Side::host;
    }
    if (DevicePart::stale(b, now)) {
        synchronize(); // launches under way read the nodes that are replaced
        device_.prepare(b, s, graphs_.scratch(), now);
    }
    if (!b.device_can) {
        return Side::host;
    }
    // who wants to know of every layer when it has run has the host wait for its ids
    return now.mask->all() && b.slot_lookup != nullptr && !b.experts->demand.listens() ? Side::device : Side::both;
}

ggml_status SplitStream::run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts) {
    ModelExperts & experts = *b.experts;
    SpanScope      block(experts.tracer(), Activity::layer, b.layer);
    block.span.count = b.block.n_tokens();
    const auto now   = experts.snapshot(b.layer);
    const Side side  = side_of(b, s, now);
    auto       mask  = now.mask;
    if (side == Side::host) {
        mask = nullptr; // whatever is resident: all rows are the host's
    }
    ++experts.counters.blocks;
    if (b.layer >= 0) {
        experts.set_cursor(b.layer + 1); // this one has its mask already
    }
    ggml_status status = stream_.launch(b, b.before, graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (side == Side::device) {
        return run_on_device(b, s, mask, graph, counts);
    }

    fetch_ids_and_input(b, s);
    const bool early = b.slot_lookup != nullptr; // the device looks the mask up itself and need not wait for the host
    if (side == Side::host) {
        ++experts.counters.blocks_host;
    } else if (early) {
        status = device_.launch(b, s, mask, graph);
    }
    const int64_t wait_ns = wait_for_ids(b);
    if (side == Side::both && !early) {
        status = device_.launch(b, s, mask, graph);
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    if (counts) {
        experts.demand.count(b.layer, s.ids_of(b.block, 0), b.block.ids->nb[1], b.block.n_used(), b.block.n_tokens(),
                             b.n_expert, mask.get());
    }
    const int n_rows  = HostPart::select(b, s, mask.get());
    int64_t   host_ns = 0;
    if (n_rows > 0) {
        status = host_.compute(b, s, n_rows, host_ns);
    }
    if (counts) {
        experts.demand.add_times(b.layer, wait_ns, host_ns);
    }
    if (n_rows > 0 && status == GGML_STATUS_SUCCESS) {
        status = join(b, s, n_rows, graph);
    }
    if (counts && status == GGML_STATUS_SUCCESS) {
        experts.demand.raise_layer(b.layer);
    }
    return status;
}

// All experts of the block are resident. Its ids are counted when the stream has been synchronized.
ggml_status SplitStream::run_on_device(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                                       const ggml_cgraph * graph, bool counts) {
    ++b.experts->counters.blocks_device;
    if (counts) {
        stream_.fetch(b, b.block.ids, b.late_ids, b.ids_span);
        late_.push_back({&b, mask, b.block.ids->nb[1], b.block.n_used(), b.block.n_tokens()});
    }
    return device_.launch(b, s, mask, graph);
}

void SplitStream::fetch_ids_and_input(const SplitBlock & b, const Staging & s) {
    stream_.fetch(b, b.block.ids, s.ids, b.ids_span);
    stream_.fetch(b, b.block.input, s.input, ggml_nbytes(b.block.input));
    b.experts->counters.download_bytes += b.ids_span + ggml_nbytes(b.block.input);
    stream_.mark();
}

// Returns how long it waited, in nanoseconds.
int64_t SplitStream::wait_for_ids(const SplitBlock & b) {
    const SpanScope scope(b.experts->tracer(), Activity::host_wait, b.layer);
    const int64_t   ns = stream_.wait_for_mark();
    b.experts->counters.host_wait_ns += static_cast<uint64_t>(ns);
    ++b.experts->counters.host_waits;
    return ns;
}

// Queues the host's rows and their way into the block's output.
ggml_status SplitStream::join(SplitBlock & b, const Staging & s, int n_rows, const ggml_cgraph * graph) {
    if (fault() == Fault::drop_join) {
        return GGML_STATUS_SUCCESS;
    }
    const size_t row   = static_cast<size_t>(b.block.out->ne[0]) * sizeof(float);
    const int    pairs = b.block.n_used() * b.block.n_tokens();
    const char * out   = static_cast<const char *>(b.host_out->data);
    b.experts->counters.join_bytes += n_rows * row;
    if (n_rows == pairs) {
        // from where they are: the next block computes there only after its event, which lies behind this copy
        stream_.send(b, b.block.out, out, n_rows * row);
        return GGML_STATUS_SUCCESS;
    }
    int n = 0;
    for (int i = 0; i < pairs; ++i) {
        if (s.host_ids[i] >= 0) {
            memcpy(s.rows + n * row, out + i * row, row);
            s.index[n++] = i;
        }
    }
    set_join_rows(b, n);
    stream_.send(b, b.join_rows, s.rows, n * row);
    stream_.send(b, b.join_index, s.index, n * sizeof(int32_t));
    // a launch of its own: its shape changes with n, and the dense nodes around it keep theirs
    return stream_.launch(b, {b.join}, graph);
}

// Counts blocks that ran wholly on the device; the stream has been synchronized.
void SplitStream::count_late() {
    for (const LateIds & late : late_) {
        late.b->experts->demand.count(late.b->layer, reinterpret_cast<const int32_t *>(late.b->late_ids), late.stride,
                                      late.n_used, late.n_tokens, late.b->n_expert, late.mask.get());
    }
    late_.clear();
}

} // namespace spac
