// The runner of prefill streaming: it runs blocks of large batches in turns (weight_stream.h).
//
// It owns the weight stream. The first large batch makes it, and a graph that needs larger regions makes it again. The
// runner also knows which turn of the graph under way is next.
#pragma once

#include "backend/graph/split_graph.h"
#include "backend/prefill/weight_stream.h"
#include "backend/stream/compute_stream.h"

#include <memory>

namespace spac {

class PrefillRunner {
  public:
    explicit PrefillRunner(ComputeStream & stream) : stream_(stream) {}

    // Makes the weight stream for graphs with these blocks now, if they are to run in turns.
    void reserve(const std::vector<Block> & blocks);
    // Returns true if blocks of this graph, which is about to be executed, run in turns; these are the blocks that have
    // turns afterwards. It prepares the turns if necessary, with `scratch`, the staging on the device.
    bool use(SplitGraph & g, ggml_backend_buffer_t scratch);
    // Runs such a block and the dense nodes before it. Call it for the blocks in their order.
    ggml_status run(const SplitBlock & b, const SplitGraph & g, const ggml_cgraph * graph);
    // Ends all work that was queued for turns, also of a graph that has failed. Call it after synchronizing the compute
    // stream.
    void end();
    // Notes which experts the last tokens of the last graph wanted, if that was asked for (Experts::set_tail_tokens).
    // Call it after synchronizing the compute stream.
    void note_tails();

  private:
    // The ids of a block's last tokens, on their way to the host. llama.cpp may have built its next graph in the memory
    // of this one when they are read, so the fields are copies.
    struct Tail {
        std::shared_ptr<ModelExperts> experts;
        int                           layer;
        size_t                        offset, stride; // bytes in tail_ids_, and from token to token
        int                           n_used, n_tokens;
    };

    bool make_stream(size_t region_bytes, const std::shared_ptr<ModelExperts> & experts);
    bool make_turns(SplitGraph & g, int n_tokens, ggml_backend_buffer_t scratch);
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, int region);
    void fetch_tail(const SplitBlock & b, size_t n_blocks);

    ComputeStream &               stream_;
    std::shared_ptr<void>         held_; // counts the bytes of weights_ at its model's experts
    std::unique_ptr<WeightStream> weights_;
    uint64_t                      generation_ = 0;     // number of weights_
    bool                          refused_    = false; // the device refused the weight stream
    size_t                        next_       = 0;     // next turn of the graph under way
    ggml_backend_buffer_ptr       tail_ids_;           // host memory
    std::vector<Tail>             tails_;
};

} // namespace spac
