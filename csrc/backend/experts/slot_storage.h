// Device memory of the slots: for every pool one tensor per weight of an expert, stacked by slot in the weight's own
// type and shape, so that mul_mat_id reads a pool's tensor as it would read a layer's.
#pragma once

#include "backend/device/ggml_internals.h"

#include <memory>
#include <string>
#include <vector>

namespace spac {

// One weight of the experts of a layer as the store holds it: all experts stacked along the last dimension.
struct ExpertWeight {
    const ggml_tensor * tensor; // in the store; [in, out, n_expert], or [out, n_expert] for a bias
    size_t              bytes;  // of one expert

    bool is_bias() const { return tensor->ne[2] == 1; }
    int  n_expert() const { return static_cast<int>(is_bias() ? tensor->ne[1] : tensor->ne[2]); }
    bool same_shape(const ExpertWeight & other) const;
    // How many slots of this weight one tensor may stack: as many as kernels can index, and as `device` takes, where
    // one is given.
    int max_slots(ggml_backend_dev_t device = nullptr) const;
};

class SlotStorage {
  public:
    // `prototypes[p]`: the weights of a layer of pool p; `n_slots[p]` slots each, at most the weights' max_slots().
    // Throws MemoryError when the device refuses.
    SlotStorage(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                const std::vector<int> & n_slots);

    // Bytes of device memory that such a storage takes.
    static size_t bytes_of(ggml_backend_dev_t device, const std::vector<std::vector<ExpertWeight>> & prototypes,
                           const std::vector<int> & n_slots);

    // The stacked tensor of weight `w` of pool `p`; null when the pool has no slots.
    ggml_tensor * tensor(int p, int w) const { return tensors_[p][w]; }
    size_t        bytes() const { return buffer_ ? ggml_backend_buffer_get_size(buffer_.get()) : 0; }

  private:
    // The tensors, without memory.
    SlotStorage(const std::vector<std::vector<ExpertWeight>> & prototypes, const std::vector<int> & n_slots);

    ggml_context_ptr                        ctx_;
    ggml_backend_buffer_ptr                 buffer_;
    std::vector<std::vector<ggml_tensor *>> tensors_;
};

} // namespace spac
