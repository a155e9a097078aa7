// The prefetcher and the evictor: one worker thread that drives a model's slots toward the plan.
//
// The protocol that keeps slots from being overwritten while they are read is core/residency.h's.
#pragma once

#include "backend/device/ggml_internals.h"
#include "core/residency.h"

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace spac {

class ModelExperts;

class Reconciler {
  public:
    // To be made under the owner's mutex, after its residency and storage.
    Reconciler(ModelExperts & experts, ggml_backend_dev_t device);
    ~Reconciler(); // stops the worker; copies under way are finished

    // See core/residency.h; from any thread.
    void foresee(int layer, std::vector<int32_t> experts, bool wake);
    void note_used(int layer, std::vector<int32_t> experts);
    void forget();

  private:
    struct Word {
        bool                 ran;
        std::vector<int32_t> experts;
    };
    struct Batch {
        std::vector<Residency::Load> loads;
        int64_t                      start_ns;
        size_t                       place; // in the ring, and of its event
    };

    void                  work();
    void                  hear(Residency & residency);
    std::vector<ExpertId> timely(std::vector<ExpertId> foreseen) const;
    void                  start(std::vector<Residency::Load> loads);
    void                  finish_oldest(Residency & residency);
    bool                  has_failed();
    void                  make_ring();
    size_t                most_pageable() const;
    void                  count(const Batch & batch, bool copied);
    void                  record(const std::vector<Residency::Eviction> & evictions); // under the owner's mutex

    ModelExperts &   owner_;
    ggml_backend_ptr stream_;
    // Pinned memory for what is pageable of as many experts as are under way to the device; null where nothing is.
    ggml_backend_buffer_ptr             ring_;
    std::vector<ggml_backend_event_ptr> ends_; // of the batches, by place
    size_t                              batch_size_ = 0, n_batches_ = 0, n_started_ = 0;
    std::deque<Batch>                   under_way_; // in the order of their copies
    int64_t                             last_end_ns_ = 0;
    int64_t                             expert_ns_   = 0; // that an expert's copy takes, of late; 0: unknown
    bool                                stop_        = false;
    std::mutex                          said_mutex_;
    std::map<int, Word>                 said_; // the last word of every layer
    bool                                forget_ = false;
    std::thread                         worker_;
};

} // namespace spac
