// The expert store: the buffer type that holds all experts in host memory, in the plain ggml layout.
//
// It is the default buffer type of a hidden device, which makes buffers from host pointers. This lets llama.cpp's
// loader keep the file's mapping instead of copying it. For the CPU backend it is ordinary host memory, so the CPU
// backend can run everything that the SPAC device does not split.
#pragma once

#include "backend/device/ggml_internals.h"

#include <memory>
#include <string>

namespace spac {

class ModelExperts;

// A store for one wrapped device. `inner` provides pinned memory if the loader copies instead of mapping.
class Store {
  public:
    // The name tells the stores of several devices apart: llama.cpp's loader puts weights of buffer types with equal
    // names together.
    Store(std::string name, ggml_backend_dev_t (*get_inner)(void *), void * inner_context);
    Store(const Store &)             = delete;
    Store & operator=(const Store &) = delete;

    const char *               name() const { return name_.c_str(); }
    ggml_backend_buffer_type_t buffer_type() { return &buft_; }
    ggml_backend_dev_t         inner() const { return inner_(inner_context_); }

  private:
    const std::string name_;
    ggml_backend_dev_t (*inner_)(void *);
    void *                   inner_context_;
    ggml_backend_device      device_; // hidden: it is in no registry
    ggml_backend_buffer_type buft_;
};

// Return true if a tensor lies in a store, or if a buffer type is one.
bool in_store(const ggml_tensor * t);
bool is_store(ggml_backend_buffer_type_t buft);

// Registers the mapping that a store tensor lies in with the device's driver, so that copies from it are asynchronous.
// Each mapping is registered once. Call it when the model has been loaded: until then, the loader copies dense weights
// out of the mapping.
void register_store(const ggml_tensor * store_tensor);

// Returns the wrapped device whose store a tensor lies in.
ggml_backend_dev_t device_of_store(const ggml_tensor * store_tensor);

// Returns the experts of the model that a store tensor belongs to.
std::shared_ptr<ModelExperts> experts_of(const ggml_tensor * store_tensor);

} // namespace spac
