// The reconciler: one worker thread for each device, which prefetches and evicts experts until the slots of the model's
// layers there match the plan.
//
// core/residency.h has the protocol that keeps slots from being overwritten while they are read.
#pragma once

#include "backend/device/ggml_internals.h"
#include "core/parallel_copy.h"
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
struct ExpertsPart;

class Reconciler {
  public:
    // Must be called under the owner's mutex, after the part's residency and storage were made.
    Reconciler(ModelExperts & experts, ExpertsPart & part);
    ~Reconciler(); // stops the worker, which finishes the copies under way

    // Pass on hints for core/residency.h. Any thread may call them.
    void foresee(int layer, std::vector<int32_t> experts, bool wake);
    void note_used(int layer, std::vector<int32_t> experts);
    void forget();

  private:
    struct Hint {
        bool                 ran;
        std::vector<int32_t> experts;
    };
    struct Batch {
        std::vector<Residency::Load> loads;
        int64_t                      start_ns;
        size_t                       place; // its index in the ring and among the events
    };

    void                  work();
    void                  take_hints(Residency & residency);
    std::vector<ExpertId> timely(std::vector<ExpertId> foreseen) const;
    void                  start(std::vector<Residency::Load> loads);
    void                  finish_oldest(Residency & residency);
    bool                  has_failed();
    void                  make_ring();
    size_t                most_pageable() const;
    void                  advise_copied(const Batch & batch) const;
    void                  count(const Batch & batch, bool copied);

    ModelExperts &   owner_;
    ExpertsPart &    part_;
    ggml_backend_ptr stream_;
    // Pinned memory for the pageable parts of all experts under way to the device. Null if nothing is pageable.
    ggml_backend_buffer_ptr             ring_;
    ParallelCopy                        staging_; // copies to the ring
    std::vector<ggml_backend_event_ptr> ends_;    // the batches' ends, by place
    size_t                              batch_size_ = 0, n_batches_ = 0, n_started_ = 0;
    std::deque<Batch>                   under_way_; // in the order of their copies
    int64_t                             last_end_ns_ = 0;
    int64_t                             expert_ns_   = 0; // recent mean time of an expert's copy; 0: unknown
    bool                                stop_        = false;
    std::mutex                          hints_mutex_;
    std::map<int, Hint>                 hints_; // the last hint for every layer
    bool                                forget_ = false;
    std::thread                         worker_;
};

} // namespace spac
