// One SPAC stream: what runs the graphs of one llama.cpp context on a wrapped device and the host together.
//
// The hand-off, per MoE block, on the compute stream of the wrapped device (D) and on the thread that calls compute
// (H):
//   D  dense nodes up to the block
//   D  ids and input leave for host staging; event
//   D  the device's part: slot ids by the mask, the chain on resident experts, rows of others zero
//   H  waits for the event, counts demand, computes the other rows with the CPU backend (at the same time as D's part)
//   H  packs its rows and indices into staging and queues their copy and the join
//   D  joins the rows into the block's output; dense nodes up to the next block
// One mask version serves both sides, and is held until the launch that reads it is known to be over. Staging is one
// set for all blocks: D writes ids and input of the next block only after everything queued before, H packs rows for
// the next join only after the event of the next block, which lies behind the last join's copies on the same stream. A
// block whose experts are all resident needs no H; one without residents needs no device part.
#pragma once

#include "backend/model_experts.h"
#include "backend/split_graph.h"

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace spac {

class SplitStream {
  public:
    // Throws DeviceError when the device gives no stream.
    explicit SplitStream(ggml_backend_dev_t inner);
    ~SplitStream();
    SplitStream(const SplitStream &)             = delete;
    SplitStream & operator=(const SplitStream &) = delete;

    ggml_backend_t inner() const { return inner_.get(); }

    ggml_status compute(ggml_cgraph * graph);
    void        synchronize();
    void        set_n_threads(int n_threads);
    void        set_abort(ggml_abort_callback callback, void * data);

    // Finds the layers of a graph that will come: called while llama.cpp plans its graphs, so that the policy knows
    // them early.
    static void discover(const ggml_cgraph * graph);

  private:
    enum class Side { host, device, both };
    // Slot ids on the device, a row per layer, and the version of the mask in each.
    struct MaskTable {
        ggml_context_ptr           ctx;
        ggml_backend_buffer_ptr    buffer;
        std::vector<ggml_tensor *> rows;
        std::vector<uint64_t>      versions;
    };
    // When they are counted, llama.cpp may have built its next graph in the memory of the one that they are from.
    struct LateIds {
        SplitBlock *                b;
        std::shared_ptr<const Mask> mask;
        size_t                      stride;
        int                         n_used, n_tokens;
    };

    SplitGraph & graph_for(const ggml_cgraph * graph);
    void         reserve(const StagingSize & size);
    MaskTable &  masks_of(ModelExperts & experts);

    ggml_status run_block(SplitBlock & b, const Staging & s, const ggml_cgraph * graph, bool counts);
    Side        side_of(SplitBlock & b, const Staging & s, const ModelExperts::Snapshot & now);
    ggml_status launch_device_part(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                                   const ggml_cgraph * graph);
    void        refresh_mask(SplitBlock & b, const std::shared_ptr<const Mask> & mask);
    int         compact_pairs(SplitBlock & b, const Staging & s, const Mask & mask);
    int         host_pairs(const SplitBlock & b, const Staging & s, const Mask * mask);
    void        fetch_ids_and_input(SplitBlock & b, const Staging & s);
    void        wait_for_ids(SplitBlock & b, size_t n_before);
    ggml_status compute_host_part(SplitBlock & b);
    ggml_status join(SplitBlock & b, const Staging & s, int n_rows, const ggml_cgraph * graph);
    ggml_status launch(SplitBlock & b, const std::vector<ggml_tensor *> & nodes, const ggml_cgraph * graph);
    void        fetch(SplitBlock & b, const ggml_tensor * from, void * to, size_t bytes);
    void        send(SplitBlock & b, ggml_tensor * to, const void * from, size_t bytes);
    void        count_late();
    void        make_pool();

    ggml_backend_ptr       inner_;
    ggml_backend_event_ptr event_;
    ggml_backend_ptr       cpu_;
    ggml_threadpool *      pool_      = nullptr;
    int                    pool_size_ = 0;
    int                    n_threads_ = 1;
    bool                   masked_; // the device's kernels read negative ids; else compact form
    ggml_abort_callback    abort_      = nullptr;
    void *                 abort_data_ = nullptr;

    ggml_backend_buffer_ptr                  host_buffer_, device_buffer_;
    StagingSize                              reserved_;
    std::vector<std::unique_ptr<SplitGraph>> graphs_;
    uint64_t                                 n_computed_ = 0;

    std::map<ModelExperts *, std::pair<std::shared_ptr<ModelExperts>, MaskTable>> mask_tables_;
    // What launches under way still read; let go when they are known to be over.
    std::vector<std::shared_ptr<const void>> in_flight_;
    std::vector<LateIds>                     late_;
};

// Negative controls; see set_fault in device.h.
enum class Fault { none, swap_slots, drop_join, compact };
Fault fault();

} // namespace spac
