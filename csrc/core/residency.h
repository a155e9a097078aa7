// Residency: slot table, masks and plan together, and the steps that drive one toward the other. No device and no
// thread of its own: whoever owns it calls begin() and finish() and copies in between, and lets launches hold masks.
//
// To load expert x into a slot: where a victim holds it, begin() publishes a mask version without the victim; the slot
// comes back (SlotReturns) when the last version that names it has died with the launches that read it; then begin()
// gives the slot to x, the owner copies x's weights into it, and finish() publishes a version with x. So a published
// version names only slots whose copies are complete, and no copy ever writes to a slot that a launch may read.
//
// Not thread-safe: the owner's mutex guards every call. Retired mask versions are handed out, to die outside that
// mutex: their end returns slots.
#pragma once

#include "core/mask.h"
#include "core/plan.h"
#include "core/slot_table.h"

#include <memory>
#include <vector>

namespace spac {

class Residency {
  public:
    using Retired = std::vector<std::shared_ptr<const Mask>>;

    struct Load {
        ExpertId id;
        int      pool;
        int      slot;
    };

    struct Eviction {
        ExpertId id;
        int      pool;
        uint64_t version; // of the first mask without it
    };

    // `storage`: what the slots are made of; every lease keeps it alive.
    Residency(const std::vector<SlotTable::Layer> & layers, const std::vector<int> & pool_slots,
              std::shared_ptr<const void> storage);

    // The plan from now on. What failed to load before may be tried again.
    void submit(Plan plan);

    // One round of driving: look() under the mutex, then choose(), which takes long and reads what nobody else writes,
    // then begin() under the mutex.
    // Takes slots back; returns the plan that is in force.
    std::shared_ptr<const Plan> look();
    // The most wanted steps, at most so many of a kind; `urgent` ones first (of what is foreseen, those that can be
    // there in time).
    std::vector<SlotTable::Action> choose(const Plan & plan, int cursor, const SlotTable::Limits & limits,
                                          const std::vector<ExpertId> & urgent) const;
    // What is foreseen and has no slot, in the order in which it was said.
    std::vector<ExpertId> foreseen() const;
    // Evicts, and gives free slots to what is to be loaded: its weights are to be copied now. Several loads may be
    // under way; what was begun is to be finished.
    std::vector<Load> begin(const std::vector<SlotTable::Action> & actions, Retired & retired);

    // ---- of a layer that will run, what it is foreseen to use: to be loaded before all that the plan wants, and not
    // to be evicted; of one that ran, what it used: not to be evicted in its turn. By the thread that drives.
    void foresee(int layer, const std::vector<int32_t> & experts);
    void note_used(int layer, const std::vector<int32_t> & experts);
    void forget(); // all of that
    // Those of the last begin.
    const std::vector<Eviction> & evictions() const { return evictions_; }
    // The loads' copies are over; if they failed, their experts are not tried again under this plan.
    void finish(const std::vector<Load> & loads, bool copied, Retired & retired);

    // Whether, at the last begin, nothing was left to do for the plan in force, and nothing is under way.
    bool                        settled() const { return settled_ && n_loading_ == 0; }
    std::shared_ptr<const Mask> mask(int layer) const { return masks_[layer]; }
    const SlotTable &           table() const { return table_; }
    // Where slots come back to. To be kept by who waits on it: it outlives this object.
    std::shared_ptr<SlotReturns> returns() const { return returns_; }

    void check_integrity() const;

  private:
    std::shared_ptr<const Mask> publish(ExpertId id, int slot);
    void                        keep(int layer, const std::vector<int32_t> & experts);

    SlotTable                                table_;
    std::vector<std::shared_ptr<const Mask>> masks_; // by layer
    std::shared_ptr<const void>              storage_;
    std::shared_ptr<SlotReturns>             returns_ = std::make_shared<SlotReturns>();
    std::shared_ptr<const Plan>              plan_    = std::make_shared<Plan>();
    bool                                     retry_   = false;         // what failed to load
    std::vector<std::vector<char>>           loading_, failed_, kept_; // [layer][expert]
    std::vector<ExpertId>                    urgent_;
    std::vector<Eviction>                    evictions_;
    bool                                     settled_   = true;
    size_t                                   n_loading_ = 0;
};

} // namespace spac
