// The prefetcher and the evictor: one worker thread that drives a model's slots toward the plan.
//
// The protocol that keeps slots from being overwritten while they are read is core/residency.h's.
#pragma once

#include "backend/ggml_internals.h"
#include "core/residency.h"

#include <memory>
#include <thread>
#include <vector>

namespace spac {

class ModelExperts;

class Reconciler {
  public:
    // To be made under the owner's mutex, after its residency and storage.
    Reconciler(ModelExperts & experts, ggml_backend_dev_t device);
    ~Reconciler(); // stops the worker; copies under way are finished

  private:
    void work();
    bool copy(const std::vector<Residency::Load> & loads);
    void make_ring();
    void count(const std::vector<Residency::Load> & loads, bool copied, int64_t start);
    void record(const std::vector<Residency::Eviction> & evictions); // under the owner's mutex

    ModelExperts &   owner_;
    ggml_backend_ptr stream_;
    // Where experts lie in pageable memory: pinned memory for as many experts as a batch has, on their way to the
    // device.
    ggml_backend_buffer_ptr ring_;
    size_t                  batch_size_ = 0;
    bool                    stop_ = false, idle_ = true;
    std::thread             worker_;
};

} // namespace spac
