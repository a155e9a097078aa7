// Weights of a store that keep their addresses, for graphs that arrive as messages.
//
// ggml's RPC server makes every tensor of a graph anew, in memory that the next graph takes. spac knows a model's
// layers by the addresses of their weights, and the reconciler reads them between graphs. So a graph's weights in
// stores are replaced by copies that stay.
#pragma once

#include "backend/device/ggml_internals.h"

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>

namespace spac {

class ModelExperts;

class StoreWeights {
  public:
    // Makes the nodes of a graph read copies of their weights in stores. Equal weights of all graphs have one copy.
    // Returns the experts of the graph's first such weight; null without one.
    std::shared_ptr<ModelExperts> replace(ggml_cgraph * graph);
    // Returns the bytes of a model's weights that nodes with rows have read, as buffers are padded.
    size_t bytes_met(const ModelExperts * model) const;

  private:
    struct Weight {
        ggml_tensor *               tensor;
        std::weak_ptr<ModelExperts> experts; // the memory may have belonged to an earlier model
        bool                        met = false;
    };
    using Key = std::array<uint64_t, 2 * GGML_MAX_DIMS + 3>;

    Weight & copy_of(const ggml_tensor * weight, const std::shared_ptr<ModelExperts> & experts);

    std::deque<ggml_tensor>                tensors_; // no address is used twice
    std::map<Key, Weight>                  known_;
    std::map<const ModelExperts *, size_t> met_;
};

} // namespace spac
