// A SPAC stream: it runs the graphs of one llama.cpp context on a wrapped device and the host together.
//
// The hand-off, per MoE block, on the compute stream of the wrapped device (D) and on the thread that calls compute
// (H):
//   D  runs the dense nodes up to the block
//   D  sends ids and input to host staging, and sets a mark
//   D  runs the device's part: slot ids by the mask, the chain on resident experts, zeros in the other rows
//   H  waits for the mark, counts demand, computes the other rows with the CPU backend (at the same time as D's part)
//   D  waits for H, takes its rows, joins (out + rows), and runs the dense nodes up to the next block
// A helper queues D's work some blocks ahead of H. D waits at a gate, so no launch lies between H and D (`ahead`,
// split_stream_ahead.cpp). While looking ahead by layers (lookahead.h), H chooses a block's mask just before it opens
// the gate of the previous block. It writes the mask's row to the memory from which D then copies it.
// In some cases H queues the following work itself when it is done: the device has no gate, the device's part is
// compact and needs the ids first, misses are loaded within their layer (MissLoader), or there is a layer listener.
// D gets the same operations in the same order in both cases. If D does not reach a gate within a deadline, launching
// ahead ends: the graph fails, and H queues the following work of the context's later graphs.
//
// Both sides use one version of the mask, which is held until the launch that reads it is known to have ended. All
// blocks share one set of staging. D writes ids and input of the next block only behind the join. H writes its rows
// only after the mark of the next block, which lies behind the copy of the last rows. A block whose experts are all
// resident needs no H. A block without residents needs no device part. A block of a large batch
// (Experts::set_stream_tokens) needs neither (prefill_runner.h).
//
// This file has the order of the steps. Others do the steps: compute_stream (queues on D, and holds the memory that it
// reads), device_part and host_part (the two halves of a block), miss_loader, hand_off (helper and jobs),
// prefill_runner (large batches), graph_cache (prepared graphs and staging).
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/hidden_states/stream_tap.h"
#include "backend/prefill/prefill_runner.h"
#include "backend/split/block_parts.h"
#include "backend/split/hand_off.h"
#include "backend/stream/compute_stream.h"
#include "backend/stream/graph_cache.h"
#include "core/not_copied.h"

#include <memory>
#include <vector>

namespace spac {

class SplitStream : NotCopied {
  public:
    // Throws DeviceError if the device gives no stream.
    explicit SplitStream(ggml_backend_dev_t inner);
    // Must not be called if the device hangs. Then the device may still read the memory, and the helper cannot be
    // joined.
    ~SplitStream();

    ggml_backend_t inner() const { return stream_.backend(); }

    ggml_status compute(ggml_cgraph * graph);
    void        synchronize();
    void        set_n_threads(int n_threads) { host_.set_n_threads(n_threads); }
    void        set_abort(ggml_abort_callback callback, void * data);

    // Returns true if the device did not finish its queue after a gate's deadline had passed and all gates were opened.
    // Then no thread waits for it any more, and every graph fails.
    bool hangs() const { return hangs_; }

    // Prepares for a graph that will come. It finds the graph's layers, so that the policy knows them early, and
    // allocates the memory that the graph needs, before slots take it. Returns true if the graph has MoE blocks. Throws
    // MemoryError if the device has no memory for staging.
    bool plan(const ggml_cgraph * graph);

  private:
    enum class Side { host, device, both };
    // Ids that are counted later. llama.cpp may then have built its next graph in the memory of this one, so the fields
    // are copies.
    struct LateIds {
        SplitBlock *                b;
        DemandCounter *             counter;
        std::shared_ptr<const Mask> mask;
        size_t                      stride;
        int                         n_used, n_tokens;
        bool                        counts; // false: the tail of a graph that does not count
    };

    // An execution of a block with a host's part.
    struct Executed {
        SplitBlock *         b = nullptr;
        std::vector<int32_t> ids; // [n_tokens, n_used]
        bool                 counts  = false;
        int64_t              wait_ns = 0; // for ids and input
    };

    // A graph under way: the next block to queue, and the status.
    struct GraphRun {
        SplitGraph *        g;
        const ggml_cgraph * graph;
        bool                stages  = false; // blocks of large batches run in stages
        size_t              next    = 0;     // next block to queue; behind the last block, the last dense nodes
        int                 counted = -1;    // the first layer that counts as demand; -1: none
        int                 last    = -1;    // the last one
        ggml_status         status  = GGML_STATUS_SUCCESS;
    };

    ggml_status run(ggml_cgraph * graph);
    ggml_status run_draft(SplitGraph & g, const ggml_cgraph * graph);
    ggml_status run_on_copies(SplitBlock & b, const std::shared_ptr<const DraftCopies> & copies,
                              const ggml_cgraph * graph, bool counts);
    void        run_blocks(GraphRun & graph_run, bool until_job = false);
    void        run_ahead(GraphRun & graph_run);
    ggml_status serve_jobs(HostJob & last);
    ggml_status serve(const HostJob & job);
    void        account(const HostJob & job);
    void        give_up(const HostJob & last, const Overdue & why);
    void        refuse_when_it_hangs() const;
    void        pass_gate();
    ggml_status run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts);
    ggml_status run_on_device(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                              const ggml_cgraph * graph, bool counts);
    ggml_status hand_over(SplitBlock & b, const Staging & s, Side side, const ModelExperts::Snapshot & now,
                          const ggml_cgraph * graph, bool counts);
    void        choose(const LateMask & late);
    ggml_status serve(SplitBlock & b, const Staging & s, Side side, ModelExperts::Snapshot now,
                      const ggml_cgraph * graph, bool counts);
    Side        side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now);
    bool        can_go_ahead(const SplitGraph & g);
    ggml_status launch_dense(const SplitBlock & b, const Part & dense, const Part & joined, const ggml_cgraph * graph);
    void        hand_to_host(const SplitBlock & b, const Staging & s);
    int64_t     wait_for_ids(const SplitBlock & b, uint64_t mark, const Mask * mask = nullptr);
    void        send_rows(SplitBlock & b, bool join);
    void        fetch_late(SplitBlock & b, DemandCounter & counter, std::shared_ptr<const Mask> mask, bool counts);
    void        finish_queued();
    void        count_late();

    void note_executed(SplitBlock & b, const Staging & s, bool counts, int64_t wait_ns);
    void note_chosen();
    void count(const Mask * mask, const Mask * resident, int64_t host_ns);

    ComputeStream stream_; // the first member, since the others queue on it
    GraphCache    graphs_;
    HostPart      host_;
    DevicePart    device_;
    MissLoader    loader_;
    PrefillRunner prefill_;
    HandOff       jobs_;

    const std::shared_ptr<StreamTap> tap_ = tap_for_context(); // null: this context has no tap

    bool     ahead_      = false; // the graph under way is queued ahead
    bool     loads_      = false; // misses of the graph under way may be loaded within their layer
    bool     hangs_      = false;
    bool     late_masks_ = false; // ... with masks that are chosen as late as possible
    bool     early_      = false; // ... and rows of experts are read early
    Executed executed_;           // the last one, and the time that the host computed
    int64_t  host_ns_ = 0;
    // The last such mask, and the one before, which the device may still read. Only the thread that serves uses them.
    std::shared_ptr<const Mask> chosen_, chosen_before_;
    SplitBlock *                at_gate_      = nullptr; // the block that is queued up to its gate
    uint64_t                    mark_at_gate_ = 0;
    bool                        join_at_gate_ = false;
    bool                        join_pending_ = false; // the next dense nodes follow a block whose join is not queued
    ggml_abort_callback         abort_        = nullptr;
    void *                      abort_data_   = nullptr;
    std::vector<LateIds>        late_;
};

// Looks ahead (lookahead.h), when a block's scores have arrived: reports the experts that the later block is predicted
// to use.
void look_ahead(SplitBlock & b, const Staging & s);

} // namespace spac
