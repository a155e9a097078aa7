// Low-bit copies of a model's experts in device memory, with which the model drafts for itself (MoE-SpeQ 3.4).
//
// A draft pass (Experts::set_draft_pass) computes with them in place of the experts. It shares everything else with the
// model: dense tensors, routers and the context's memory.
#pragma once

#include "backend/device/ggml_internals.h"

#include <string>
#include <unordered_map>
#include <vector>

namespace spac {

class DraftCopies {
  public:
    // Returns the type of this name ("q4_0"). Throws InputError for an unknown one, and for a type that needs more than
    // the weights to quantize them.
    static ggml_type type_of(const std::string & name);

    // Quantizes these weights of the store to `type` on `n_threads` threads. Biases are copied as they are. Throws
    // InputError if a row cannot have this type or if the device has no kernel for it, and MemoryError if the device
    // has no room.
    DraftCopies(ggml_backend_dev_t device, const std::vector<const ggml_tensor *> & weights, ggml_type type,
                int n_threads);

    // Returns the copy of a weight, or null.
    ggml_tensor * of(const ggml_tensor * weight) const;
    // Returns the device memory that they take.
    size_t bytes() const { return ggml_backend_buffer_get_size(buffer_.get()); }
    // Returns the device memory that the constructor would allocate.
    static size_t bytes_of(ggml_backend_dev_t device, const std::vector<const ggml_tensor *> & weights, ggml_type type);

  private:
    // Makes the tensors without memory.
    DraftCopies(const std::vector<const ggml_tensor *> & weights, ggml_type type);

    ggml_context_ptr                                       ctx_;
    ggml_backend_buffer_ptr                                buffer_;
    std::unordered_map<const ggml_tensor *, ggml_tensor *> copies_;
};

} // namespace spac
