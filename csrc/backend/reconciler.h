// The prefetcher and the evictor: one worker thread that drives a model's slots toward the plan.
//
// Protocol. To load expert x into a slot: (1) where a victim holds it, publish a mask version without the victim; (2)
// wait until the slot is returned, that is, until the last mask version that names it has died with the launches that
// read it; (3) copy x's weights on this worker's own stream (through pinned staging where they
// are pageable) and wait for the stream; (4) publish a version with x. So a
// published version names only slots whose copies are complete, and no copy ever writes to a slot that a launch may
// read.
#pragma once

#include "backend/ggml_internals.h"
#include "core/mask.h"
#include "core/slot_table.h"

#include <memory>
#include <thread>
#include <vector>

namespace spac {

class ModelExperts;

class Reconciler {
  public:
    // To be made under the owner's mutex, after its table, storage and returns.
    Reconciler(ModelExperts & experts, ggml_backend_dev_t device);
    ~Reconciler(); // stops the worker; copies under way are finished

    // Held under the owner's mutex: whether the worker has nothing left to do for the plan in force.
    bool idle() const {
        return idle_;
    }
    // Likewise: a new plan is there; not idle until the worker has looked at it.
    void wanted() {
        idle_ = false;
    }

  private:
    struct Load {
        ExpertId id;
        int      pool;
        int      slot;
    };

    void work();
    // Starts what the plan wants next: takes free slots for the batch it returns, evicts for later ones. Mask versions
    // that were replaced go to `retired`, to die outside the mutex.
    std::vector<Load> next_batch_locked(std::vector<std::shared_ptr<const Mask>> & retired);
    bool              copy(const std::vector<Load> & batch);
    void              make_ring();
    void              publish_locked(const std::vector<Load> & batch, bool copied,
                                     std::vector<std::shared_ptr<const Mask>> & retired);

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
