// The slot table tells which expert is in which slot, and what to do next to reach a plan. It is pure bookkeeping: no
// device, no thread, no lock.
//
// A slot is free, held or leaving. The expert of a held slot is resident or being copied in. The expert of a leaving
// slot is out of the table, but launches under way may still read it; the slot becomes free when the owner says so.
// Slots belong to pools. Layers whose experts have equal shapes and types share one, so that every slot of a pool fits
// every expert of its layers exactly.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace spac {

// The plan: what a scheduler wants of the slots. It is a value type of shape [L, N], where N is the largest number of
// experts of a layer.
struct Plan {
    int                  n_layer  = 0;
    int                  n_expert = 0;
    std::vector<int32_t> priority;  // [L * N], higher is wanted more
    std::vector<int32_t> threshold; // [L], an expert is wanted when its priority reaches its layer's threshold

    int32_t of(int il, int expert) const { return priority[static_cast<size_t>(il) * n_expert + expert]; }
    bool    wants(int il, int expert) const { return of(il, expert) >= threshold[il]; }
};

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

    // There are `pool_slots[p]` slots in pool p. Layers are in the order in which they run.
    SlotTable(std::vector<Layer> layers, std::vector<int> pool_slots);

    int n_layer() const { return static_cast<int>(layers_.size()); }
    int n_pool() const { return static_cast<int>(pools_.size()); }
    int n_slots() const;
    int n_slots(int pool) const { return static_cast<int>(pools_[pool].holder.size()); }
    int n_held() const;
    int n_free(int pool) const { return static_cast<int>(pools_[pool].free.size()); }
    int pool_of(int layer) const { return layers_[layer].pool; }

    int n_expert(int layer) const { return layers_[layer].n_expert; }

    // Returns the slot of an expert in its layer's pool, or -1 if it has none.
    int slot_of(ExpertId id) const { return slot_of_[id.layer][id.expert]; }

    // Gives the expert a free slot of its layer's pool (there must be one), and returns the slot.
    int acquire(ExpertId id);
    // Takes the expert's slot away, and returns it. The slot is leaving until release().
    int evict(ExpertId id);
    // Makes a leaving slot free again.
    void release(int pool, int slot);

    // One step toward the plan. `load` gets a free slot of its pool (`use_free`), or one that is leaving, once it is
    // free (`wait`), or the slot of another expert, which is evicted for it (`use_evicted`).
    struct Action {
        enum Kind { use_free, wait, use_evicted };
        ExpertId load;
        Kind     kind;
        ExpertId evict; // with use_evicted
    };
    // The number of steps that are asked for. Steps beyond these may be left out.
    struct Limits {
        size_t loads     = std::numeric_limits<size_t>::max(); // into free slots
        size_t evictions = std::numeric_limits<size_t>::max();
    };
    // Actions that are forbidden for an expert, [layer][expert]. Empty means none.
    enum Mark : char { no_load = 1, no_evict = 2 };
    using Marks = std::vector<std::vector<char>>;
    // Returns the steps that bring the slots from here to the plan, most wanted first: by priority, and within a
    // priority by the order in which layers run from `cursor` on (cyclic). Victims go by lowest priority, then by the
    // layer that runs furthest in the future. The layer before `cursor` runs now, so it counts as the nearest one. A
    // load never evicts equal or higher priority, unless it is `urgent`. Urgent loads come before all others in their
    // given order, and evict what has the lowest priority in the plan, whatever that is.
    std::vector<Action> toward(const Plan & plan, int cursor, const Marks & marks, const std::vector<ExpertId> & urgent,
                               const Limits & limits) const;

    // Throws InternalError if the table contradicts itself.
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

// Shares `n_slots` out over pools in proportion to the experts of their layers (largest remainder first). No pool gets
// more than it has experts.
std::vector<int> share_out(int n_slots, const std::vector<SlotTable::Layer> & layers, int n_pool);

// Shares `n_slots` out over devices in proportion to the experts of their layers, as share_out() does. A device gets no
// more than it has room for; the others get the rest. The sum is less than `n_slots` if there is no room for all.
std::vector<int> share_by_room(int n_slots, const std::vector<int> & experts, const std::vector<int> & room);

// Returns how many slots one stacked tensor may have. CUDA's kernels (mmvq, mmvf, mmf, mmq) multiply a slot's index by
// its size in 32-bit ints, in blocks of a quantized type and in elements of another.
int slots_per_tensor(int64_t blocks_per_slot);

// Returns the largest number of slots for which `share_out` gives no pool more than its limit, or all experts if they
// fit.
int most_slots(const std::vector<int> & limits, const std::vector<SlotTable::Layer> & layers);

// Finds where the experts of a layer come from when all of them are wanted side by side on the device. Those with a
// slot are copied there, the others come over the link. A run has the neighbours that one copy moves.
struct CopyRun {
    int first;
    int count;
    int slot; // slot of the first, which the others' follow; -1: over the link
};

// Returns the runs that make up experts 0, 1, … in order. `slot_of[e]` is -1 if an expert has none. An expert has
// `expert_bytes` of the weight that is copied. The link moves `copy_bytes` in the time that one more copy takes. So
// residents come over the link too where that is no slower than the copies that it saves.
std::vector<CopyRun> copy_runs(const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes);

} // namespace spac
