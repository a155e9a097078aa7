// Device memory of the slots. Every pool has one tensor per weight of an expert. It stacks the slots in the weight's
// own type and shape, so that mul_mat_id reads a pool's tensor as it would read a layer's.
#pragma once

#include "backend/device/ggml_internals.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace spac {

// One weight of a layer's experts in the store, with all experts stacked along the last dimension.
struct ExpertWeight {
    const ggml_tensor * tensor; // in the store; [in, out, n_expert], or [out, n_expert] for a bias
    size_t              bytes;  // of one expert

    bool is_bias() const { return tensor->ne[2] == 1; }
    int  n_expert() const { return static_cast<int>(is_bias() ? tensor->ne[1] : tensor->ne[2]); }
    bool same_shape(const ExpertWeight & other) const;
    // Returns the most slots of this weight that one tensor may stack: as many as kernels can index, and as `device`
    // accepts if it is given.
    int max_slots(ggml_backend_dev_t device = nullptr) const;
};

class SlotStorage {
  public:
    // Allocates `n_slots[p]` slots for each pool p, at most the weights' max_slots(). `prototypes[p]` has the weights
    // of one layer of the pool. Throws MemoryError if the device refuses.
    SlotStorage(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                const std::vector<int> & n_slots);

    // Returns the bytes of device memory that such a storage takes.
    static size_t bytes_of(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                           const std::vector<int> & n_slots);

    // Returns the stacked tensor of weight `w` of pool `p`. It is null if the pool has no slots.
    ggml_tensor * tensor(int p, int w) const { return tensors_[p][w]; }
    size_t        bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }

  private:
    // Makes the tensors without memory.
    SlotStorage(const std::vector<std::vector<ExpertWeight>> & prototypes, const std::vector<int> & n_slots);

    ggml_context_ptr                        ctx_;
    ggml_backend_buffer_ptr                 buffer_;
    std::vector<std::vector<ggml_tensor *>> tensors_;
};

// The stages of prefill streaming (prefill/prefill_runner.h). In each stage, one matrix of all experts passes through
// the device, and the biases behind it. A stage has the weights that the device holds at the same time, and the nodes
// that read them.
struct WeightStage {
    static constexpr int n_regions = 2; // regions of device memory: one is filled while the other is read

    std::vector<const ggml_tensor *> weights;   // in the store
    int                              first = 0; // index of the first one among the block's weights
    std::vector<size_t>              offsets;   // their offsets in a region
    std::vector<ggml_tensor *>       staged;    // their tensors in the region
    std::vector<ggml_tensor *>       nodes;
    int                              region = 0;
};

// Returns the stages of a block's weights, without nodes and regions. It returns none if the chain cannot run in
// stages.
std::vector<WeightStage> stages_of(const std::vector<const ggml_tensor *> & weights, ggml_backend_buffer_type_t type);
// Returns the bytes of a region that can hold each of these stages.
size_t stage_bytes(const std::vector<WeightStage> & stages, ggml_backend_buffer_type_t type);
// Returns true if the regions are small beside the device's memory, most of which is for slots.
bool stages_affordable(ggml_backend_dev_t device, size_t region_bytes);

} // namespace spac
