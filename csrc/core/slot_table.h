// Which expert is in which slot, and what to do next to reach a plan. Pure bookkeeping: no device, no thread, no lock.
//
// A slot is free, held (its expert is resident or being copied in) or leaving (its expert is out of the table, but
// launches under way may still read it; it becomes free when the owner says so). Slots belong to pools: layers whose
// experts have equal shapes and types share one, so that every slot of a pool fits every expert of its layers exactly.
#pragma once

#include "core/plan.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace spac {

struct ExpertId {
    int  layer;
    int  expert;
    bool operator==(const ExpertId & other) const { return layer == other.layer && expert == other.expert; }
};

class SlotTable {
  public:
    struct Layer {
        int n_expert;
        int pool;
    };

    // `pool_slots[p]` slots in pool p; layers in the order in which they run.
    SlotTable(std::vector<Layer> layers, std::vector<int> pool_slots);

    int n_layer() const { return static_cast<int>(layers_.size()); }
    int n_pool() const { return static_cast<int>(pools_.size()); }
    int n_slots() const;
    int n_held() const;
    int n_free(int pool) const { return static_cast<int>(pools_[pool].free.size()); }
    int pool_of(int layer) const { return layers_[layer].pool; }

    int n_expert(int layer) const { return layers_[layer].n_expert; }

    // The slot of an expert in its layer's pool, -1 when it has none.
    int slot_of(ExpertId id) const { return slot_of_[id.layer][id.expert]; }

    // Gives the expert a free slot of its layer's pool (there must be one) and returns it.
    int acquire(ExpertId id);
    // Takes the expert's slot away; the slot is leaving until `release`.
    int evict(ExpertId id);
    // A leaving slot is free again.
    void release(int pool, int slot);

    // One step toward the plan: `load` gets a free slot of its pool (`use_free`), or one that is leaving, once it is
    // free
    // (`wait`), or the slot of another expert, to be evicted for it (`use_evicted`).
    struct Action {
        enum Kind { use_free, wait, use_evicted };
        ExpertId load;
        Kind     kind;
        ExpertId evict; // with use_evicted
    };
    // How many steps are asked for: beyond these, steps may be left out.
    struct Limits {
        size_t loads     = std::numeric_limits<size_t>::max(); // into free slots
        size_t evictions = std::numeric_limits<size_t>::max();
    };
    // What an expert is not to be done to, [L][N]; empty: nothing.
    enum Mark : char { no_load = 1, no_evict = 2 };
    using Marks = std::vector<std::vector<char>>;
    // The steps that bring the slots from here to the plan, most wanted first: by priority, and within a priority by
    // the order in which layers run from `cursor` on (cyclic). Victims go by lowest priority, then by the layer that
    // runs furthest in the future, which is not the one before `cursor`, that runs now. A load never evicts equal or
    // higher priority; only `urgent` ones, which come before all others in the order that they have, take what the plan
    // holds for worth least, whatever that is.
    std::vector<Action> toward(const Plan & plan, int cursor, const Marks & marks, const std::vector<ExpertId> & urgent,
                               const Limits & limits) const;

    // Throws InternalError when the table contradicts itself.
    void check_integrity() const;

  private:
    struct Pool {
        std::vector<int>                     free;
        std::vector<std::optional<ExpertId>> holder; // by slot
        std::vector<char>                    leaving;
    };

    int distance(int layer, int cursor) const;

    std::vector<Layer>            layers_;
    std::vector<Pool>             pools_;
    std::vector<std::vector<int>> slot_of_; // [layer][expert]
};

// Shares `n_slots` out over pools in proportion to the experts of their layers (largest remainder first), no pool
// getting more than it has experts.
std::vector<int> share_out(int n_slots, const std::vector<SlotTable::Layer> & layers, int n_pool);

// How many slots one stacked tensor may have: CUDA's kernels (mmvq, mmvf, mmf, mmq) multiply a slot's index with its
// size in 32-bit ints, in blocks of a quantized type and elements of another.
int slots_per_tensor(int64_t blocks_per_slot);

// The most slots that `share_out` gives no pool more than its limit of; all experts when there is room for them.
int most_slots(const std::vector<int> & limits, const std::vector<SlotTable::Layer> & layers);

} // namespace spac
