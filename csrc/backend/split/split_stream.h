// One SPAC stream: what runs the graphs of one llama.cpp context on a wrapped device and the host together.
//
// The hand-off, per MoE block, on the compute stream of the wrapped device (D) and on the thread that calls compute
// (H):
//   D  dense nodes up to the block
//   D  ids and input leave for host staging; mark
//   D  the device's part: slot ids by the mask, the chain on resident experts, rows of others zero
//   H  waits for the mark, counts demand, computes the other rows with the CPU backend (at the same time as D's part)
//   D  waits for H; its rows come; join: out + rows; dense nodes up to the next block
// A helper queues all of D's some blocks ahead of H: D waits at a gate, and no launch lies between H and D (ahead,
// split_stream_ahead.cpp). While looking ahead by layers (lookahead.h), a block's mask is chosen before the gate of the
// block before it opens: its row on the device is copied from where H writes it then.
// Where that cannot be (the device has no gate; the compact form, whose part of D needs ids; a layer listener), H
// queues what follows when it is done. Either way D gets the same operations in the same order. A gate that D does not
// reach within a deadline ends this: the graph fails, and the context's later ones are queued in the plain order.
//
// One mask version serves both sides, and is held until the launch that reads it is known to be over. Staging is one
// set for all blocks: D writes ids and input of the next block only behind the join, and H its rows only after the
// mark of the next block, which lies behind the last rows' copy. A block whose experts are all resident needs no H;
// one without residents needs no device part. A block of a large batch (Experts::set_stream_tokens) needs neither:
// weight_stream.h.
//
// This file keeps the order of things. Who does them: compute_stream (what is queued on D, and how long what it reads
// is held), device_part and host_part (the two halves of a block), hand_off (helper and jobs), turn_runner (large
// batches), graph_cache (prepared graphs and staging).
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/hidden_states/stream_tap.h"
#include "backend/prefill/turn_runner.h"
#include "backend/split/device_part.h"
#include "backend/split/hand_off.h"
#include "backend/split/host_part.h"
#include "backend/stream/compute_stream.h"
#include "backend/stream/graph_cache.h"

#include <memory>
#include <vector>

namespace spac {

class SplitStream {
  public:
    // Throws DeviceError when the device gives no stream.
    explicit SplitStream(ggml_backend_dev_t inner);
    // Not to be called when the device hangs: it may still read what is freed, and the helper cannot be joined.
    ~SplitStream();
    SplitStream(const SplitStream &)             = delete;
    SplitStream & operator=(const SplitStream &) = delete;

    ggml_backend_t inner() const { return stream_.backend(); }

    ggml_status compute(ggml_cgraph * graph);
    void        synchronize();
    void        set_n_threads(int n_threads) { host_.set_n_threads(n_threads); }
    void        set_abort(ggml_abort_callback callback, void * data);

    // Whether the device did not even finish what was queued when a gate's deadline had passed. Nothing waits for it
    // any more, and every graph fails.
    bool hangs() const { return hangs_; }

    // Takes note of a graph that will come: finds its layers, so that the policy knows them early, and makes the memory
    // that it needs, so that slots take none of it. Whether there are any. Throws MemoryError when the device has no
    // room for staging.
    bool plan(const ggml_cgraph * graph);

  private:
    enum class Side { host, device, both };
    // When they are counted, llama.cpp may have built its next graph in the memory of the one that they are from.
    struct LateIds {
        SplitBlock *                b;
        std::shared_ptr<const Mask> mask;
        size_t                      stride;
        int                         n_used, n_tokens;
    };

    // A graph under way: how far it was queued, and how that went.
    struct Course {
        SplitGraph *        g;
        const ggml_cgraph * graph;
        bool                turns   = false; // blocks of large batches run in turns
        size_t              next    = 0;     // block to be queued, or the dense nodes behind the last
        bool                counted = false; // some block counts as demand
        ggml_status         status  = GGML_STATUS_SUCCESS;
    };

    ggml_status run(ggml_cgraph * graph);
    void        run_blocks(Course & course, bool until_job = false);
    void        run_ahead(Course & course);
    ggml_status serve_jobs(HostJob & last);
    ggml_status serve(const HostJob & job);
    void        give_up(const HostJob & last, const Overdue & why);
    void        refuse_when_it_hangs() const;
    void        pass_gate();
    ggml_status run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts);
    ggml_status run_on_device(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                              const ggml_cgraph * graph, bool counts);
    ggml_status hand_over(SplitBlock & b, const Staging & s, Side side, const ModelExperts::Snapshot & now,
                          const ggml_cgraph * graph, bool counts);
    void        choose(const LateMask & late);
    ggml_status serve(SplitBlock & b, const Staging & s, Side side, const std::shared_ptr<const Mask> & mask,
                      const ggml_cgraph * graph, bool counts);
    Side        side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now);
    bool        can_go_ahead(const SplitGraph & g);
    ggml_status launch_dense(const SplitBlock & b, const Part & dense, const Part & joined, const ggml_cgraph * graph);
    void        fetch_ids_and_input(const SplitBlock & b, const Staging & s);
    int64_t     wait_for_ids(const SplitBlock & b, uint64_t mark);
    void        send_rows(SplitBlock & b, bool join);
    void        finish_queued();
    void        count_late();

    ComputeStream stream_; // first: the others queue on it
    GraphCache    graphs_;
    HostPart      host_;
    DevicePart    device_;
    TurnRunner    turns_;
    HandOff       jobs_;

    const std::shared_ptr<StreamTap> tap_ = tap_for_context(); // null: nobody wants this context's states

    bool ahead_      = false; // the graph under way is queued ahead
    bool hangs_      = false;
    bool late_masks_ = false; // ... with masks that are chosen as late as can be
    // Of such masks, on the thread that serves: the last one, and the one before, which the device may still read.
    std::shared_ptr<const Mask> chosen_, chosen_before_;
    SplitBlock *                at_gate_      = nullptr; // queued up to the gate; what is behind it comes next
    uint64_t                    mark_at_gate_ = 0;
    bool                        join_at_gate_ = false;
    bool                        join_pending_ = false; // of the block before the next dense nodes
    ggml_abort_callback         abort_        = nullptr;
    void *                      abort_data_   = nullptr;
    std::vector<LateIds>        late_;
};

} // namespace spac
