// One SPAC stream: what runs the graphs of one llama.cpp context on a wrapped device and the host together.
//
// The hand-off, per MoE block, on the compute stream of the wrapped device (D) and on the thread that calls compute
// (H):
//   D  dense nodes up to the block
//   D  ids and input leave for host staging; event
//   D  the device's part: slot ids by the mask, the chain on resident experts, rows of others zero
//   H  waits for the event, counts demand, computes the other rows with the CPU backend (at the same time as D's part)
//   H  packs its rows and indices into staging (all rows go from where they are) and queues their copy and the join
//   D  joins the rows into the block's output; dense nodes up to the next block
// One mask version serves both sides, and is held until the launch that reads it is known to be over. Staging is one
// set for all blocks: D writes ids and input of the next block only after everything queued before, H packs rows for
// the next join only after the event of the next block, which lies behind the last join's copies on the same stream. A
// block whose experts are all resident needs no H; one without residents needs no device part. A block of a large
// batch (Experts::set_stream_tokens) needs neither: weight_stream.h.
//
// This file keeps the order of things. Who does them: compute_stream (what is queued on D, and how long what it reads
// is held), device_part and host_part (the two halves of a block), turn_runner (large batches), graph_cache (prepared
// graphs and staging).
#pragma once

#include "backend/compute_stream.h"
#include "backend/device_part.h"
#include "backend/graph_cache.h"
#include "backend/host_part.h"
#include "backend/model_experts.h"
#include "backend/turn_runner.h"

#include <memory>
#include <vector>

namespace spac {

class SplitStream {
  public:
    // Throws DeviceError when the device gives no stream.
    explicit SplitStream(ggml_backend_dev_t inner);
    ~SplitStream();
    SplitStream(const SplitStream &)             = delete;
    SplitStream & operator=(const SplitStream &) = delete;

    ggml_backend_t inner() const { return stream_.backend(); }

    ggml_status compute(ggml_cgraph * graph);
    void        synchronize();
    void        set_n_threads(int n_threads) { host_.set_n_threads(n_threads); }
    void        set_abort(ggml_abort_callback callback, void * data);

    // Finds the layers of a graph that will come: called while llama.cpp plans its graphs, so that the policy knows
    // them early.
    static void discover(const ggml_cgraph * graph);

  private:
    enum class Side { host, device, both };
    // When they are counted, llama.cpp may have built its next graph in the memory of the one that they are from.
    struct LateIds {
        SplitBlock *                b;
        std::shared_ptr<const Mask> mask;
        size_t                      stride;
        int                         n_used, n_tokens;
    };

    ggml_status run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts);
    ggml_status run_on_device(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                              const ggml_cgraph * graph, bool counts);
    Side        side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now);
    void        fetch_ids_and_input(const SplitBlock & b, const Staging & s);
    int64_t     wait_for_ids(const SplitBlock & b);
    ggml_status join(SplitBlock & b, const Staging & s, int n_rows, const ggml_cgraph * graph);
    void        count_late();

    ComputeStream stream_; // first: the others queue on it
    GraphCache    graphs_;
    HostPart      host_;
    DevicePart    device_;
    TurnRunner    turns_;

    ggml_abort_callback  abort_      = nullptr;
    void *               abort_data_ = nullptr;
    std::vector<LateIds> late_;
};

} // namespace spac
