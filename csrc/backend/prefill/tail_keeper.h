// Keeps experts that a prompt's last tokens use on the device, while they pass through the weight stream.
//
// When the ids of a block's last tokens are on the host, Residency::begin_tail() gives free slots to some of their
// experts. The weight stream then copies each matrix of these experts from its region to the slots, before the region
// is filled again. So they need not come over the link when the plan behind the prompt wants them. No launch reads the
// slots until the graph has ended.
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/prefill/weight_stream.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace spac {

class TailKeeper {
  public:
    // Chooses experts of a block by the ids of its last tokens, with `stride` bytes from token to token. With `from`
    // (WeightStream::fill), experts that are not wanted there do not pass. Call it once for each block of a graph.
    void choose(const SplitBlock & b, const char * ids, size_t stride, int n_tokens,
                const std::vector<int32_t> * from = nullptr);
    // Queues the copies of a turn of the block that was chosen last. Each of its turns has to come once.
    void copy(const WeightTurn & turn, WeightStream & weights);
    // Publishes what was chosen and copied. The weight stream has ended.
    void end();

  private:
    std::shared_ptr<ModelExperts>   experts_;
    std::vector<ModelExperts::Tail> tails_;       // of each block
    size_t                          n_turns_ = 0; // of the last block, which are not copied yet
};

} // namespace spac
