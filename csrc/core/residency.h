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

    // Takes slots back, evicts for what is wanted (at most `max_evictions`), and gives free slots to the most wanted
    // (at most `max_loads`), whose weights are to be copied now. Loads that were begun must be finished before the next
    // begin.
    std::vector<Load> begin(int cursor, size_t max_loads, size_t max_evictions, Retired & retired);
    // Those of the last begin.
    const std::vector<Eviction> & evictions() const { return evictions_; }
    // The loads' copies are over; if they failed, their experts are not tried again under this plan.
    void finish(const std::vector<Load> & loads, bool copied, Retired & retired);

    // Whether, at the last begin, nothing was left to do for the plan in force.
    bool                        settled() const { return settled_; }
    std::shared_ptr<const Mask> mask(int layer) const { return masks_[layer]; }
    const SlotTable &           table() const { return table_; }
    // Where slots come back to. To be kept by who waits on it: it outlives this object.
    std::shared_ptr<SlotReturns> returns() const { return returns_; }

    void check_integrity() const;

  private:
    std::shared_ptr<const Mask> publish(ExpertId id, int slot);

    SlotTable                                table_;
    std::vector<std::shared_ptr<const Mask>> masks_; // by layer
    std::shared_ptr<const void>              storage_;
    std::shared_ptr<SlotReturns>             returns_ = std::make_shared<SlotReturns>();
    Plan                                     plan_;
    std::vector<std::vector<char>>           failed_; // [layer][expert], under this plan
    std::vector<Eviction>                    evictions_;
    bool                                     settled_   = true;
    size_t                                   n_loading_ = 0;
};

} // namespace spac
