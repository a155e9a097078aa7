// Residency: the slot table, the masks and the plan, and the steps that drive slots and masks toward the plan. It has
// no device and no thread of its own. Its owner calls begin() and finish(), copies in between, and lets launches hold
// masks.
//
// Loading expert x into a slot takes these steps. If a victim holds the slot, begin() publishes a mask version without
// the victim. The slot comes back (SlotReturns) when the last version that names it has died with the launches that
// read it. Then begin() gives the slot to x, the owner copies x's weights into it, and finish() publishes a version
// with x. So a published version names only slots whose copies are complete, and no copy ever writes to a slot that a
// launch may read.
//
// A layer that is being executed may load what it misses in the same way (begin_misses). It reads these slots by a mask
// version of its own, behind the copies. finish_misses() publishes them later.
//
// It is not thread-safe: the owner's mutex guards every call. Retired mask versions are handed out, so that they die
// outside that mutex: their end returns slots.
#pragma once

#include "core/mask.h"
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
        uint64_t version; // version of the first mask without it
    };

    // `storage` is what the slots are made of. Every lease keeps it alive.
    Residency(const std::vector<SlotTable::Layer> & layers, const std::vector<int> & pool_slots,
              std::shared_ptr<const void> storage);

    // Sets the plan from now on. What failed to load before may be tried again.
    void submit(Plan plan);

    // One round of driving is look() under the mutex, then choose(), which takes long and reads only what nobody else
    // writes, then begin() under the mutex.
    //
    // Takes slots back. Returns the plan that is in force.
    std::shared_ptr<const Plan> look();
    // Returns the most wanted steps, at most so many of a kind. `urgent` ones come first (of what is foreseen, those
    // that can be there in time).
    std::vector<SlotTable::Action> choose(const Plan & plan, int cursor, const SlotTable::Limits & limits,
                                          const std::vector<ExpertId> & urgent) const;
    // Returns the experts that are foreseen and have no slot, in the order in which they were named.
    std::vector<ExpertId> foreseen() const;
    // Evicts, and gives free slots to what has to be loaded: the owner copies its weights now. Several loads may be
    // under way. Each load that was begun has to be finished.
    std::vector<Load> begin(const std::vector<SlotTable::Action> & actions, Retired & retired);

    // foresee() names what a layer that will run is expected to use: it is loaded before all that the plan wants, and
    // is not evicted. note_used() names what a layer that ran has used: it is not evicted in its turn. The thread that
    // drives calls them.
    void foresee(int layer, const std::vector<int32_t> & experts);
    void note_used(int layer, const std::vector<int32_t> & experts);
    void forget(); // drops all of that
    // Returns the evictions of the last begin().
    const std::vector<Eviction> & evictions() const { return evictions_; }
    // Ends loads whose copies are over. If the copies failed, their experts are not tried again under this plan.
    void finish(const std::vector<Load> & loads, bool copied, Retired & retired);

    // Missing experts of a layer that is being executed: they are copied into slots, and the layer uses them at once.
    // No other call but submit(), mask() and settled() may run at the same time.
    struct Misses {
        std::vector<Load>           loads;
        std::shared_ptr<const Mask> mask; // the layer's mask with these experts
    };
    // Gives slots to `missing` experts of a layer, the first ones first, while slots can be freed. `used[e]` is true
    // for the experts that the execution uses, which are not evicted. A slot that an older mask still names is not
    // taken, so there may be fewer loads. The caller must not hold a mask of the layer, since experts of the layer go
    // first. With `most_recent`, the plan goes by recency, so loaded experts take the places of its least wanted ones.
    Misses begin_misses(int layer, const std::vector<int32_t> & missing, const std::vector<char> & used, int cursor,
                        bool most_recent);
    // Publishes these experts. All copies have ended.
    void finish_misses(const Misses & misses, Retired & retired);

    // Returns true if the last begin() had nothing left to do for the plan in force, and nothing is under way.
    bool                        settled() const { return settled_ && n_loading_ == 0; }
    std::shared_ptr<const Mask> mask(int layer) const { return masks_[layer]; }
    const SlotTable &           table() const { return table_; }
    // Returns the place where slots come back. A thread that waits on it has to keep it, because it outlives this
    // object.
    std::shared_ptr<SlotReturns> returns() const { return returns_; }

    void check_integrity() const;

  private:
    // A change that a miss made to an expert since the last plan. The plan does not know it yet.
    enum Missed : char { untouched, loaded, evicted };

    std::shared_ptr<const Mask>      publish(ExpertId id, std::shared_ptr<const SlotLease> lease, int slot);
    std::shared_ptr<const SlotLease> lease_of(int layer, int slot);
    std::vector<ExpertId>            victims(int layer, const std::vector<char> & used, int cursor, size_t n) const;
    void                             take_back();
    void                             keep(int layer, const std::vector<int32_t> & experts);

    SlotTable                                table_;
    std::vector<std::shared_ptr<const Mask>> masks_; // by layer
    std::shared_ptr<const void>              storage_;
    std::shared_ptr<SlotReturns>             returns_ = std::make_shared<SlotReturns>();
    std::shared_ptr<const Plan>              plan_    = std::make_shared<Plan>();
    bool                                     retry_   = false;         // true: try again what failed to load
    std::vector<std::vector<char>>           loading_, failed_, kept_; // [layer][expert]
    std::vector<std::vector<char>>           missed_;                  // [layer][expert], of Missed
    std::vector<ExpertId>                    urgent_;
    std::vector<Eviction>                    evictions_;
    bool                                     settled_   = true;
    size_t                                   n_loading_ = 0;
};

} // namespace spac
