// The expert store: the buffer type that holds all experts in host memory, in the plain ggml layout.
//
// It is the default buffer type of a hidden device, which makes buffers from host pointers. This lets llama.cpp's
// loader keep the file's mapping instead of copying it. For the CPU backend it is ordinary host memory, so the CPU
// backend can run everything that the SPAC device does not split.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "core/not_copied.h"
#include "core/pinned_ranges.h"

#include <memory>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

namespace spac {

class ModelExperts;

// A store for one wrapped device. `inner` provides pinned memory if the loader copies instead of mapping.
class Store : NotCopied {
  public:
    // The name tells the stores of several devices apart: llama.cpp's loader puts weights of buffer types with equal
    // names together.
    Store(std::string name, ggml_backend_dev_t (*get_inner)(void *), void * inner_context);

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

// Advises the system about the whole pages in a range. Systems that do not know the advice ignore it.
inline void advise(const Extent & range, int advice) {
    const auto page  = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (range.begin + page - 1) / page * page, end = range.end / page * page;
    if (begin < end) {
        static_cast<void>(madvise(reinterpret_cast<void *>(begin), end - begin, advice));
    }
}

// The registration of a model file's mapping with the device's driver ("pinning"). Copies from registered memory run
// beside all other work and need no staging.

// Returns true if the device's driver can register host memory.
bool can_register(ggml_backend_dev_t device);

// Returns the bytes of experts that the process may still pin (settings.h: set_pinning). The two functions behind it
// count bytes of experts that are pinned in another way.
size_t pinning_room();
void   count_pinned(size_t bytes);
void   uncount_pinned(size_t bytes);

// The registrations of one mapping. They are made slice by slice, because a driver may refuse more than some total.
// After a refusal, earlier slices stay registered, and no more are tried.
class PinnedMapping : NotCopied {
  public:
    // Adds every registration to `ranges`, which must live longer than this object.
    explicit PinnedMapping(PinnedRanges & ranges) : ranges_(ranges) {}
    ~PinnedMapping();

    // Registers the mapping, and touches every page. `weights` (in any order) are spac's own, and borders of
    // registrations lie inside them (core/pinned_ranges.h). Returns the reason why a part is not registered.
    Unpinned make(ggml_backend_dev_t device, Extent mapping, std::vector<Extent> weights);

  private:
    PinnedRanges &      ranges_;
    ggml_backend_dev_t  device_ = nullptr;
    std::vector<Extent> slices_; // the registered ones
};

} // namespace spac
