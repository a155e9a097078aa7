// Launching ahead of the host. SplitStream's helper queues the device's work behind gates. Meanwhile the thread that
// decodes serves the host's parts and opens the gates.
#include "backend/device/settings.h"
#include "backend/device/timer.h"
#include "backend/experts/model_experts.h"
#include "backend/split/split_stream.h"
#include "core/error.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace spac {

// Runs a graph ahead. This thread queues the work up to the first gate. The helper queues all later work, while this
// thread serves the host's parts.
void SplitStream::run_ahead(GraphRun & graph_run) {
    run_blocks(graph_run, true);
    if (at_gate_ == nullptr) {
        return; // the graph has ended or failed without a job
    }
    struct Launch {
        GraphRun           graph_run;
        std::exception_ptr thrown;
    };
    const auto launch =
        std::make_shared<Launch>(Launch{graph_run, nullptr}); // shared, since a helper that hangs keeps it
    jobs_.start([this, launch] {
        stream_.set_ahead(true);
        try {
            run_blocks(launch->graph_run);
        } catch (...) {
            launch->thrown = std::current_exception();
        }
        stream_.set_ahead(false);
    });
    ggml_status status = GGML_STATUS_SUCCESS;
    HostJob     last;
    try {
        status = serve_jobs(last);
    } catch (const Overdue & why) {
        give_up(last, why);
        graph_run.status = GGML_STATUS_FAILED;
        return;
    }
    graph_run = launch->graph_run;
    if (launch->thrown != nullptr) {
        std::rethrow_exception(launch->thrown);
    }
    graph_run.status = graph_run.status == GGML_STATUS_SUCCESS ? status : graph_run.status;
}

// Serves all jobs of the helper. `last` is the job under way, or the last one that was served.
ggml_status SplitStream::serve_jobs(HostJob & last) {
    ggml_status status = GGML_STATUS_SUCCESS;
    for (HostJob job; jobs_.pop(job);) {
        last = job;
        if (job.late) {
            job.mask = chosen_;
        }
        if (status == GGML_STATUS_SUCCESS) {
            try {
                status = serve(job);
            } catch (const Overdue &) {
                throw;
            } catch (const std::exception & error) {
                GGML_LOG_ERROR("spac: %s\n", error.what());
                status = GGML_STATUS_FAILED;
            }
        } // after a failure, gates are only opened
        if (const auto late = jobs_.end(job)) {
            choose(*late);
        }
        {
            const Timer timer(job.b->experts->counters.queue_ns); // a call of the device, counted like those that queue
            stream_.gate()->open(job.mark);
        }
        if (status == GGML_STATUS_SUCCESS) {
            account(job); // while the device computes
        }
        jobs_.served(job);
    }
    return status;
}

// Lets the device's stream drain, whatever was queued, and ends the use of gates: for this context for good, and for
// the process's other contexts until launching ahead is switched on again.
//
// The graph fails and is not run a second time. llama.cpp's allocator lets later nodes write over a graph's inputs, and
// a recurrent state may have been updated in place, so a second run would not compute the same. llama.cpp forgets the
// tokens of a graph that failed, and they can be decoded again.
void SplitStream::give_up(const HostJob & last, const Overdue & why) {
    Gate & gate = *stream_.gate();
    GGML_LOG_WARN("spac: launching ahead was switched off, and this graph fails: %s within %g s (SPAC_GATE_TIMEOUT); "
                  "layer %d, mark %u, signalled %u, opened %u, %zu jobs pending\n",
                  why.what(), gate_timeout(), last.b != nullptr ? last.b->layer : -1, static_cast<uint32_t>(last.mark),
                  gate.signalled(), gate.opened(), jobs_.n_left());
    set_launch_ahead(false);
    for (const LateMask & late : jobs_.cancel()) {
        DevicePart::write_row(late, nullptr); // the device will read the row now, and slot ids must be valid
    }
    gate.open(last.mark + Gate::for_good);
    // the driver may hang in any call, so only the helper calls it
    hangs_ = !jobs_.idle();
    if (!hangs_) {
        jobs_.start([this] { stream_.synchronize(); });
        hangs_ = !jobs_.idle();
    }
    if (hangs_) {
        GGML_LOG_ERROR("spac: the device hangs: it did not finish what was queued within another %g s after all gates "
                       "were opened; this context computes nothing any more\n",
                       gate_timeout());
        return;
    }
    stream_.drop_gate();
    late_.clear(); // ids of a graph that failed are no demand
    chosen_.reset();
    chosen_before_.reset();
}

void SplitStream::refuse_when_it_hangs() const {
    if (hangs_) {
        throw DeviceError("the device hangs since a gate's deadline passed");
    }
}

// Serves the host's part of a block that was queued ahead.
ggml_status SplitStream::serve(const HostJob & job) {
    ModelExperts & experts = *job.b->experts;
    SpanScope      block(experts.tracer(), Activity::layer, job.b->layer);
    block.span.count      = job.b->block.n_tokens();
    const int64_t wait_ns = wait_for_ids(*job.b, job.mark, job.mask.get());
    if (late_masks_ && job.b->layer >= 0) {
        experts.set_cursor(job.b->layer + 1);
    }
    note_executed(*job.b, *job.s, job.counts, wait_ns);
    if (late_masks_ && job.counts) {
        look_ahead(*job.b, *job.s);
    }
    if (early_) {
        host_.keep_input(*job.b, *job.s); // the next block's input comes to the same memory
    }
    const HostPart::Served served = host_.serve(*job.b, *job.s, job.mask.get());
    if (served.n_rows == 0) {
        HostPart::clear(*job.b); // the join adds all rows, also stale ones
    }
    host_ns_ = served.ns;
    return served.status;
}

// Counts what serve() has computed.
void SplitStream::account(const HostJob & job) {
    if (late_masks_ && job.counts) {
        note_chosen();
    }
    if (early_) {
        host_.note_early(*executed_.b, executed_.ids);
    }
    count(job.mask.get(), job.mask.get(), host_ns_);
}

// Returns true if this graph can be launched ahead of the host.
bool SplitStream::can_go_ahead(const SplitGraph & g) {
    const auto listened = [](auto & b) { return b->experts->demand.listens(); };
    return !loads_ && launch_ahead().value_or(!stream_.capabilities().shares_host_cores) && device_.masked() &&
           graphs_.host_pinned() && std::none_of(g.blocks.begin(), g.blocks.end(), listened) &&
           stream_.gate() != nullptr;
}

// Queues a block up to its gate, and leaves the host's part to the thread that serves.
ggml_status SplitStream::hand_over(SplitBlock & b, const Staging & s, Side side, const ModelExperts::Snapshot & now,
                                   const ggml_cgraph * graph, bool counts) {
    ggml_status status = launch_dense(b, b.predicting_before, b.predicting_joined, graph);
    if (status != GGML_STATUS_SUCCESS) {
        return status;
    }
    hand_to_host(b, s);
    const uint64_t mark = stream_.signal();
    HostJob        job  = {&b, &s, nullptr, mark, counts};
    if (side == Side::both) {
        LateMask late = {&b, nullptr, now.generation};
        if (late_masks_ && device_.rows_pinned(b)) {
            late.row = device_.reserve_row(b);
            job.late = jobs_.defer(late);
        }
        job.mask = job.late ? nullptr : now.mask;
        status   = job.late ? device_.launch(b, late, graph) : device_.launch(b, s, now.mask, graph);
    }
    if (status == GGML_STATUS_SUCCESS) {
        jobs_.push(std::move(job));
        at_gate_      = &b;
        mark_at_gate_ = mark;
        join_at_gate_ = side == Side::both;
    }
    return status;
}

// Chooses the next block's mask, so that experts loaded until now count.
void SplitStream::choose(const LateMask & late) {
    const auto now = late.b->experts->snapshot(late.b->layer);
    chosen_before_ = std::exchange(chosen_, now.generation == late.generation ? now.mask : nullptr);
    DevicePart::write_row(late, chosen_.get());
}

// Queues the wait for the host if a block is at its gate, and the copy of the host's rows.
void SplitStream::pass_gate() {
    if (SplitBlock * b = std::exchange(at_gate_, nullptr)) {
        stream_.wait_at_gate(mark_at_gate_);
        send_rows(*b, join_at_gate_);
    }
}

namespace {

void add_distinct(std::vector<int32_t> & list, const int32_t * ids, int n) {
    for (int i = 0; i < n; ++i) {
        if (std::find(list.begin(), list.end(), ids[i]) == list.end()) {
            list.push_back(ids[i]);
        }
    }
}

// Returns the experts that the later block is predicted to use, from trusted places only. All tokens' first places come
// first.
std::vector<int32_t> foresee(Foresight & foresight, const Staging & s) {
    SplitBlock & to       = *foresight.block;
    const int    n_tokens = to.block.n_tokens(), n_used = to.block.n_used();
    to.foreseen.resize(static_cast<size_t>(n_used) * n_tokens);
    for (int t = 0; t < n_tokens; ++t) {
        foresight.chooser.choose(s.host_scores + static_cast<size_t>(t) * to.n_expert, to.n_expert, n_used,
                                 to.foreseen.data() + static_cast<size_t>(t) * n_used);
    }
    std::vector<int32_t> experts;
    const int            n_trusted = to.experts->lookahead.n_trusted(n_used);
    for (int place = 0; place < n_trusted; ++place) {
        for (int t = 0; t < n_tokens; ++t) {
            add_distinct(experts, &to.foreseen[static_cast<size_t>(t) * n_used + place], 1);
        }
    }
    return experts;
}

} // namespace

void look_ahead(SplitBlock & b, const Staging & s) {
    b.experts->lookahead.note_layer(b.layer, Trace::now());
    if (b.foresight) {
        b.experts->foresee(b.foresight->block->layer, foresee(*b.foresight, s));
    }
}

// Compares the prediction for this block with the experts that its router chose, and reports these.
void SplitStream::note_chosen() {
    const Executed & it     = executed_;
    SplitBlock &     b      = *it.b;
    const auto       n_used = static_cast<size_t>(b.block.n_used());
    for (size_t at = 0; at < b.foreseen.size(); at += n_used) {
        b.experts->lookahead.compare(b.foreseen.data() + at, it.ids.data() + at, b.block.n_used());
    }
    b.foreseen.clear();
    std::vector<int32_t> used;
    add_distinct(used, it.ids.data(), static_cast<int>(it.ids.size()));
    b.experts->note_used(b.layer, std::move(used));
}

} // namespace spac
