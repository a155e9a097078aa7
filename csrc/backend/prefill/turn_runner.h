// Runs blocks of large batches in turns (weight_stream.h): the experts come to the device.
//
// It owns the weight stream, made by the first large batch and again when a graph needs larger regions, and knows how
// far the turns of the graph under way have come.
#pragma once

#include "backend/graph/split_graph.h"
#include "backend/prefill/weight_stream.h"
#include "backend/stream/compute_stream.h"

#include <memory>

namespace spac {

class TurnRunner {
  public:
    explicit TurnRunner(ComputeStream & stream) : stream_(stream) {}

    // Makes the weight stream for graphs with these blocks now, where they are to run in turns.
    void reserve(const std::vector<Block> & blocks);
    // Whether blocks of this graph, which is about to be executed, run in turns: those that then have some. Prepares
    // them, where they are not yet, in `scratch`, the staging on the device.
    bool use(SplitGraph & g, ggml_backend_buffer_t scratch);
    // Runs such a block, and the dense nodes before it; blocks in their order.
    ggml_status run(const SplitBlock & b, const SplitGraph & g, const ggml_cgraph * graph);
    // The compute stream has been synchronized: ends what was queued for turns, of a graph that was given up too.
    void end();

  private:
    bool make_stream(size_t region_bytes, const std::shared_ptr<ModelExperts> & experts);
    bool make_turns(SplitGraph & g, int n_tokens, ggml_backend_buffer_t scratch);
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, int region);

    ComputeStream &               stream_;
    std::shared_ptr<void>         held_; // weights_, as its model's experts count it
    std::unique_ptr<WeightStream> weights_;
    uint64_t                      generation_ = 0;     // of weights_
    bool                          refused_    = false; // it cannot be had
    size_t                        next_       = 0;     // turn of the graph under way
};

} // namespace spac
