// The expert store: the buffer type that holds all experts in host memory, in the plain ggml layout.
//
// It belongs to a hidden device of its own whose default buffer type it is and which makes buffers from host pointers:
// that is what lets llama.cpp's loader keep the file's mapping instead of copying it. To the CPU backend it is host
// memory like any other, so that whatever the SPAC device does not split can run there.
#pragma once

#include "backend/device/ggml_internals.h"

#include <memory>

namespace spac {

class ModelExperts;

// A store for one wrapped device: `inner` gives pinned memory where the loader copies instead of mapping.
class Store {
  public:
    Store(ggml_backend_dev_t (*get_inner)(void *), void * inner_context);
    Store(const Store &)             = delete;
    Store & operator=(const Store &) = delete;

    ggml_backend_buffer_type_t buffer_type() { return &buft_; }
    ggml_backend_dev_t         inner() const { return inner_(inner_context_); }

  private:
    ggml_backend_dev_t (*inner_)(void *);
    void *                   inner_context_;
    ggml_backend_device      device_; // hidden: in no registry
    ggml_backend_buffer_type buft_;
};

// Whether a tensor lives in a store.
bool in_store(const ggml_tensor * t);
bool is_store(ggml_backend_buffer_type_t buft);

// Has the device's driver register the mapping that a store tensor lies in, so that copies from it are asynchronous:
// once for every mapping, when its model has been loaded (until then, the loader copies dense weights out of it).
void register_store(const ggml_tensor * store_tensor);

// The experts of the model that a store tensor belongs to.
std::shared_ptr<ModelExperts> experts_of(const ggml_tensor * store_tensor);

} // namespace spac
