// The turns of prefill streaming (prefill/weight_stream.h). In each turn, one matrix of all experts passes through the
// device, and the biases behind it.
#pragma once

#include "backend/device/ggml_internals.h"

#include <cstddef>
#include <vector>

namespace spac {

// The weights that the device holds at the same time, and the nodes that read them.
struct WeightTurn {
    static constexpr int n_regions = 2; // regions of device memory: one is filled while the other is read

    std::vector<const ggml_tensor *> weights;   // in the store
    int                              first = 0; // index of the first one among the block's weights
    std::vector<size_t>              offsets;   // their offsets in a region
    std::vector<ggml_tensor *>       staged;    // their tensors in the region
    std::vector<ggml_tensor *>       nodes;
    int                              region = 0;
};

// Returns the turns of a block's weights, without nodes and regions. It returns none if the chain cannot run in turns.
std::vector<WeightTurn> turns_of(const std::vector<const ggml_tensor *> & weights, ggml_backend_buffer_type_t type);
// Returns the bytes of a region that can hold each of these turns.
size_t turn_bytes(const std::vector<WeightTurn> & turns, ggml_backend_buffer_type_t type);
// Returns true if the regions are small beside the device's memory, most of which is for slots.
bool turns_affordable(ggml_backend_dev_t device, size_t region_bytes);

} // namespace spac
