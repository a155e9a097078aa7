// How the experts of a large batch pass through the device (prefill/weight_stream.h): in turns of one matrix of all
// experts, and the biases behind it.
#pragma once

#include "backend/device/ggml_internals.h"

#include <cstddef>
#include <vector>

namespace spac {

// What the device holds at the same time, and the nodes that it is held for.
struct WeightTurn {
    static constexpr int n_regions = 2; // of device memory that take turns: one is filled while the other is read

    std::vector<const ggml_tensor *> weights;   // in the store
    int                              first = 0; // of these, among the block's weights
    std::vector<size_t>              offsets;   // of these in a region
    std::vector<ggml_tensor *>       staged;    // the same in the region
    std::vector<ggml_tensor *>       nodes;
    int                              region = 0;
};

// Returns the turns of a block's weights, without nodes and regions; none where its chain does not run in turns.
std::vector<WeightTurn> turns_of(const std::vector<const ggml_tensor *> & weights, ggml_backend_buffer_type_t type);
// Returns the bytes of a region that can hold each of these turns.
size_t turn_bytes(const std::vector<WeightTurn> & turns, ggml_backend_buffer_type_t type);
// Tells whether the regions are small next to the device's memory: slots are what it is there for.
bool turns_affordable(ggml_backend_dev_t device, size_t region_bytes);

} // namespace spac
