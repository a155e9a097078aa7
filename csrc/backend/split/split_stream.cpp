#include "backend/split/split_stream.h"

#include "backend/device/timer.h"
#include "backend/experts/expert_store.h"

#include <algorithm>
#include <utility>

namespace spac {
namespace {

// Most blocks that are queued ahead of the host's part. Masks that are not late are up to as many blocks old.
constexpr size_t most_ahead = 8;

// Returns true if each block either has staging or runs in stages.
bool runs_in_stages(const SplitGraph & g) {
    return std::all_of(g.blocks.begin(), g.blocks.end(),
                       [](const auto & b) { return b->block.is_staged || !b->stages.empty(); });
}

} // namespace

SplitStream::SplitStream(ggml_backend_dev_t device)
    : stream_(device), graphs_(stream_), host_(stream_.capabilities().shares_host_cores), device_(stream_),
      loader_(stream_), prefill_(stream_) {}

SplitStream::~SplitStream() {
    synchronize();
    if (tap_) {
        tap_->end();
    }
}

void SplitStream::set_abort(ggml_abort_callback callback, void * data) {
    abort_      = callback;
    abort_data_ = data;
}

void SplitStream::synchronize() {
    if (hangs_) {
        return;
    }
    finish_queued();
    chosen_.reset();
    chosen_before_.reset();
}

void SplitStream::finish_queued() {
    stream_.synchronize();
    loader_.finish();
    prefill_.end();
    prefill_.note_tails();
    count_late();
}

bool SplitStream::plan(const ggml_cgraph * graph) {
    refuse_when_it_hangs();
    if (tap_) {
        tap_->plan(stream_, graph);
    }
    std::vector<Block> blocks = find_blocks(graph, stream_.capabilities().computes_repeats);
    for (const Block & block : blocks) {
        if (block.splittable) {
            const auto experts = experts_of(block.weights.front());
            const int  il      = experts->find_or_add_layer(block.weights, block.n_used());
            if (Router router = router_of(block); il >= 0 && router.weight != nullptr) {
                router.product = nullptr; // a node of this graph
                experts->set_router(il, std::make_shared<const Router>(router));
            }
            std::for_each(block.weights.begin(), block.weights.end(), register_store);
        }
    }
    if (!late_.empty()) {
        synchronize(); // the staging that has their ids may be replaced
    }
    graphs_.reserve(blocks);
    prefill_.reserve(blocks);
    return !blocks.empty();
}

ggml_status SplitStream::compute(ggml_cgraph * graph) {
    refuse_when_it_hangs();
    return tap_ ? tap_->compute(stream_, graph, [this](ggml_cgraph * with) { return run(with); }) : run(graph);
}

ggml_status SplitStream::run(ggml_cgraph * graph) {
    if (!late_.empty()) {
        synchronize();
    }
    SplitGraph * found = &graphs_.get(graph);
    if (found->blocks.empty()) {
        return stream_.launch(found->tail, graph);
    }
    if (found->blocks.front()->experts->draft_pass()) {
        return run_draft(*found, graph);
    }
    const bool rehearses = found->blocks.front()->experts->rehearses;
    bool       stages    = !rehearses && prefill_.use(*found, graphs_.scratch());
    if (!found->is_staged && !(stages && runs_in_stages(*found))) {
        found  = &graphs_.get_staged(graph);
        stages = !rehearses && prefill_.use(*found, graphs_.scratch());
    }
    SplitGraph & g         = *found;
    const auto   computing = host_.start(*g.blocks.front()->experts);
    GraphRun     graph_run{&g, graph};
    graph_run.stages = stages;
    loads_           = !stages && MissLoader::loads(g);
    ahead_           = !stages && can_go_ahead(g);
    late_masks_      = ahead_ && g.distance > 0;
    early_           = ahead_ && g.blocks.front()->experts->reads_early;
    join_pending_    = false;
    at_gate_         = nullptr;
    if (early_) {
        host_.begin_early(g);
    }
    if (ahead_) {
        run_ahead(graph_run);
    } else {
        run_blocks(graph_run);
    }
    if (graph_run.counted >= 0 && graph_run.status == GGML_STATUS_SUCCESS) {
        g.blocks.front()->experts->end_step(this, graph_run.counted, graph_run.last);
    }
    return graph_run.status;
}

// Queues all blocks from graph_run.next on, and serves them if they are not queued ahead. With `until_job`, it returns
// at the first gate.
void SplitStream::run_blocks(GraphRun & graph_run, bool until_job) {
    SplitGraph & g = *graph_run.g;
    for (; graph_run.next < g.blocks.size() && graph_run.status == GGML_STATUS_SUCCESS; ++graph_run.next) {
        if (until_job && at_gate_ != nullptr) {
            return;
        }
        pass_gate();
        if (ahead_ && jobs_.cancelled()) {
            graph_run.status = GGML_STATUS_FAILED;
            return;
        }
        if (abort_ != nullptr && abort_(abort_data_)) {
            graph_run.status = GGML_STATUS_ABORTED;
            return;
        }
        SplitBlock & b = *g.blocks[graph_run.next];
        const bool   counts =
            b.layer >= 0 && !b.experts->rehearses && b.experts->demand.counts(b.block.n_used(), g.n_tokens, b.n_expert);
        if (counts) {
            graph_run.counted = graph_run.counted < 0 ? b.layer : graph_run.counted;
            graph_run.last    = b.layer;
        }
        if (graph_run.stages && !b.stages.empty()) {
            if (std::exchange(join_pending_, false)) {
                graph_run.status = stream_.launch(b, {g.blocks[graph_run.next - 1]->join}, graph_run.graph);
            }
            graph_run.status =
                graph_run.status == GGML_STATUS_SUCCESS ? prefill_.run(b, g, graph_run.graph) : graph_run.status;
        } else {
            graph_run.status = run_block(b, g.staging[graph_run.next], graph_run.graph, counts);
        }
    }
    if (graph_run.status != GGML_STATUS_SUCCESS || (until_job && at_gate_ != nullptr)) {
        return;
    }
    pass_gate();
    graph_run.status = launch_dense(*g.blocks.back(), g.tail, g.joined_tail, graph_run.graph);
}

SplitStream::Side SplitStream::side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now) {
    if (now.mask == nullptr || (now.mask->none() && !loads_ && !b.experts->rehearses)) {
        return Side::host;
    }
    if (DevicePart::stale(b, now)) {
        if (b.device_ctx) {
            finish_queued(); // launches under way read the nodes that prepare() replaces
        }
        device_.prepare(b, s, graphs_.scratch(), now);
    }
    if (!b.device_can) {
        return Side::host;
    }
    // a layer listener needs every layer's ids, so the host waits for them
    return now.mask->all() && b.slot_lookup != nullptr && !b.experts->demand.listens() ? Side::device : Side::both;
}

ggml_status SplitStream::run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts) {
    ModelExperts & experts = *b.experts;
    if (ahead_) {
        stream_.passed(jobs_.make_room(most_ahead));
    }
    auto       now  = experts.snapshot(b.layer);
    const Side side = side_of(b, s, now);
    ++experts.counters.blocks;
    if (b.layer >= 0 && !late_masks_) {
        experts.set_cursor(b.layer + 1); // this layer has its mask already
    }
    if (side == Side::device) {
        SpanScope block(experts.tracer(), Activity::layer, b.layer);
        block.span.count         = b.block.n_tokens();
        const ggml_status status = launch_dense(b, b.before, b.joined, graph);
        return status == GGML_STATUS_SUCCESS ? run_on_device(b, s, now.mask, graph, counts) : status;
    }
    if (side == Side::host) {
        ++experts.counters.blocks_host;
    }
    if (ahead_ && (side == Side::host || b.slot_lookup != nullptr)) {
        return hand_over(b, s, side, now, graph, counts);
    }
    if (ahead_) { // the block's part was made in the compact form
        jobs_.make_room(1);
    }
    // without a mask, the host computes all rows, whatever is resident
    return serve(b, s, side, side == Side::host ? ModelExperts::Snapshot{} : std::move(now), graph, counts);
}

// Runs a block whose experts are all resident. Its ids are counted when the stream has been synchronized.
ggml_status SplitStream::run_on_device(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                                       const ggml_cgraph * graph, bool counts) {
    ++b.experts->counters.blocks_device;
    if (counts || b.experts->demand.tail_tokens() > 0) {
        fetch_late(b, b.experts->demand, mask, counts);
    }
    return device_.launch(b, s, mask, graph);
}

// Runs a block, with the host's part on this thread. Work behind the block is queued afterwards.
ggml_status SplitStream::serve(SplitBlock & b, const Staging & s, Side side, ModelExperts::Snapshot now,
                               const ggml_cgraph * graph, bool counts) {
    SpanScope block(b.experts->tracer(), Activity::layer, b.layer);
    block.span.count   = b.block.n_tokens();
    ggml_status status = launch_dense(b, b.predicting_before, b.predicting_joined, graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    hand_to_host(b, s);
    stream_.mark();
    const bool masked = side == Side::both && b.slot_lookup != nullptr; // the device looks up the mask itself
    const bool loads  = side == Side::both && loads_ && counts;         // ... a mask that the ids decide
    if (masked && !loads) {
        status = device_.launch(b, s, now.mask, graph);
    }
    loader_.await();
    const int64_t wait_ns = wait_for_ids(b, 0);
    loader_.finish();
    note_executed(b, s, counts, wait_ns);
    if (counts && b.experts->lookahead.distance() > 0) {
        look_ahead(b, s);
        note_chosen();
    }
    const MissLoader::Masks masks = loads ? loader_.load(b, s, std::move(now)) : MissLoader::Masks{now.mask, now.mask};
    if (side == Side::both && (!masked || loads)) {
        status = device_.launch(b, s, masks.used, graph);
    }
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    const HostPart::Served served = host_.serve(b, s, masks.used.get());
    status                        = served.status;
    count(masks.used.get(), masks.resident.get(), served.ns);
    if (status == GGML_STATUS_SUCCESS && served.n_rows > 0) {
        send_rows(b, masked);
    }
    if (status == GGML_STATUS_SUCCESS && side == Side::both && !masked) {
        status = device_.scatter(b, graph);
    }
    if (counts && status == GGML_STATUS_SUCCESS) {
        b.experts->demand.raise_layer(b.layer);
    }
    return status;
}

// Copies what is counted of an execution, whose ids have arrived. The next block's ids come to the same memory.
void SplitStream::note_executed(SplitBlock & b, const Staging & s, bool counts, int64_t wait_ns) {
    executed_.b       = &b;
    executed_.counts  = counts;
    executed_.wait_ns = wait_ns;
    executed_.ids.clear();
    for (int t = 0; t < b.block.n_tokens(); ++t) {
        const int32_t * ids = s.ids_of(b.block, t);
        executed_.ids.insert(executed_.ids.end(), ids, ids + b.block.n_used());
    }
}

// Counts the demand of an execution, if it counts, and notes its routes. `resident` is the mask without the experts
// that were loaded for it.
void SplitStream::count(const Mask * mask, const Mask * resident, int64_t host_ns) {
    const Executed &   it     = executed_;
    const SplitBlock & b      = *it.b;
    DemandCounter &    demand = b.experts->demand;
    const int          n_used = b.block.n_used(), n_tokens = b.block.n_tokens();
    const size_t       stride = static_cast<size_t>(n_used) * sizeof(int32_t);
    if (it.counts) {
        demand.count(b.layer, it.ids.data(), stride, n_used, n_tokens, b.n_expert, mask, resident);
        demand.add_times(b.layer, it.wait_ns, host_ns);
    } else if (b.layer >= 0 && demand.tail_tokens() > 0) {
        demand.note_tail(b.layer, it.ids.data(), stride, n_used, n_tokens);
    }
}

// Launches the dense nodes before the next block or behind the last, and before them the join if it is pending.
ggml_status SplitStream::launch_dense(const SplitBlock & b, const Part & dense, const Part & joined,
                                      const ggml_cgraph * graph) {
    return stream_.launch(b, std::exchange(join_pending_, false) ? joined : dense, graph);
}

// Queues what the host needs of a block: ids, input and scores.
void SplitStream::hand_to_host(const SplitBlock & b, const Staging & s) {
    b.experts->counters.download_bytes += b.ids_span + ggml_nbytes(b.block.input);
    b.experts->counters.download_bytes += b.foresight ? ggml_nbytes(b.foresight->scores) : 0;
    if (!b.in_place) { // otherwise the last of the dense nodes have written them
        stream_.fetch(b, b.block.ids, s.ids, b.ids_span);
        stream_.fetch(b, b.block.input, s.input, ggml_nbytes(b.block.input));
        if (b.foresight) {
            stream_.fetch(b, b.foresight->scores, s.host_scores, ggml_nbytes(b.foresight->scores));
        }
    }
}

// Waits until the stream has passed the mark of a job, or (0) the last mark. Returns the time in nanoseconds. Rows of
// experts that a job's `mask` leaves to the host are read meanwhile, if the graph under way does that.
int64_t SplitStream::wait_for_ids(const SplitBlock & b, uint64_t mark, const Mask * mask) {
    const SpanScope scope(b.experts->tracer(), Activity::host_wait, b.layer);
    const auto      start = Clock::now();
    if (mark > 0 && early_) {
        host_.read_early(b, mask, *stream_.gate(), mark);
    }
    mark > 0 ? stream_.wait_for_signal(mark) : stream_.wait_for_mark();
    const int64_t ns = ns_since(start);
    b.experts->counters.host_wait_ns += static_cast<uint64_t>(ns);
    ++b.experts->counters.host_waits;
    return ns;
}

// Queues the copy of the host's rows to the device: for the join, or straight into the block's output. It copies from
// the memory where they are computed. The next block computes there only after its mark, which lies behind this copy.
void SplitStream::send_rows(SplitBlock & b, bool join) {
    const size_t bytes = ggml_nbytes(b.block.out);
    b.experts->counters.join_bytes += bytes;
    if (!join || !b.in_place) { // in place, the join reads them from host memory
        stream_.send(b, join ? b.join_rows : b.block.out, b.host_out->data, bytes);
    }
    join_pending_ = join;
}

// Fetches the ids of a block that runs wholly on the device. They are counted when the stream has been synchronized.
void SplitStream::fetch_late(SplitBlock & b, DemandCounter & counter, std::shared_ptr<const Mask> mask, bool counts) {
    stream_.fetch(b, b.block.ids, b.late_ids, b.ids_span);
    late_.push_back({&b, &counter, std::move(mask), b.block.ids->nb[1], b.block.n_used(), b.block.n_tokens(), counts});
}

// Counts blocks that ran wholly on the device. Call it after synchronizing the stream.
void SplitStream::count_late() {
    for (const LateIds & late : late_) {
        const auto * ids = reinterpret_cast<const int32_t *>(late.b->late_ids);
        if (late.counts) {
            late.counter->count(late.b->layer, ids, late.stride, late.n_used, late.n_tokens, late.b->n_expert,
                                late.mask.get(), late.mask.get());
        } else {
            late.counter->note_tail(late.b->layer, ids, late.stride, late.n_used, late.n_tokens);
        }
    }
    late_.clear();
}

} // namespace spac
