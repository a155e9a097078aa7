// The experts of one loaded model, as the policy sees them: layers, slots, residency, demand.
//
// This header and device.h are the backend's public face. They name no ggml type, so that bindings and the session can
// include them alone.
#pragma once

#include "core/home_process.h"
#include "core/huge_pages.h"
#include "core/trace.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spac {

// One MoE layer, in the order in which layers run.
struct LayerInfo {
    std::string name;         // the name of its down projection's tensor, as the file has it
    int         n_expert;     // experts of this layer
    int         n_used;       // experts per token, as last seen in a graph (0 before the first one)
    size_t      expert_bytes; // bytes of one expert: all its matrices and biases
    int         pool;         // layers whose experts have equal shapes and types share a pool of slots
};

// Counters since the model was loaded (monotonic). Bytes and nanoseconds are totals over all layers and steps.
struct ExpertStats {
    uint64_t activations;       // (token, expert) pairs that decoding asked for
    uint64_t activations_hit;   // of these, computed on the device
    uint64_t distinct;          // distinct (layer, expert) per step, summed over steps
    uint64_t distinct_hit;      // of these, resident
    uint64_t blocks;            // MoE blocks executed
    uint64_t blocks_device;     // of these, wholly on the device (no wait for the host's part)
    uint64_t blocks_host;       // of these, wholly on the host
    uint64_t uploads;           // experts copied into slots
    uint64_t upload_bytes;      // bytes of these copies
    uint64_t upload_failures;   // copies that failed (the expert stays on the CPU)
    uint64_t upload_ns;         // time from a batch of copies' start to its end, the failed ones' too
    uint64_t uploads_wasted;    // uploads whose expert was evicted again without having been used (core/churn.h)
    uint64_t foreseen;          // (token, expert) pairs that were predicted by looking ahead
    uint64_t foreseen_right;    // of these, chosen by the router when its layer ran
    uint64_t evictions;         // experts that lost their slot
    uint64_t evictions_early;   // of these, wanted by the next execution of their layer (core/churn.h)
    uint64_t host_waits;        // times the host waited for ids and input of a block
    uint64_t host_wait_ns;      // time spent in these waits
    uint64_t host_compute_ns;   // time the CPU spent computing experts
    uint64_t download_bytes;    // ids and block inputs, device to host
    uint64_t blocks_streamed;   // blocks of large batches whose experts came to the device
    uint64_t stream_bytes;      // of these experts, over the link
    uint64_t stream_slot_bytes; // the others: copied from their slots
    uint64_t join_bytes;        // rows of blocks that the host took part in, host to device: all of them
    uint64_t graphs_prepared;   // graphs with MoE blocks that were met for the first time (graph_cache.h)
    uint64_t graph_ns;          // time that graphs with MoE blocks took on the calling thread, all of it
    uint64_t queue_ns;          // of this, time inside the wrapped device's calls that queue copies and launches
    uint64_t disk_bytes;        // where experts are more than memory holds: what the process had read from disks
    uint64_t ahead_ns;          // time in such calls on the helper's thread, beside the host's parts (split_stream.h)
};

// What the executions of one MoE layer that count as demand took and computed. A time is of the thread that decodes.
struct LayerCost {
    int64_t host_ns;            // computing experts on the CPU
    int64_t wait_ns;            // waiting for ids and input
    int32_t host_activations;   // (token, expert) pairs on the CPU
    int32_t host_distinct;      // distinct experts of them, of every execution
    int32_t device_activations; // the same on the device
    int32_t device_distinct;
};

// What kept experts' memory that the device's driver could have pinned from being so; the worst of a model's files.
enum class Unpinned { none, off, limit, refused };

// How much of a model's experts lies in memory that the device's driver has pinned.
struct HostBytes {
    size_t   pinned;
    size_t   pageable; // the others
    Unpinned why;
};

struct SlotStats {
    int    n_slots;    // slots allocated
    int    n_resident; // experts in them
    size_t bytes;      // device memory of the slots
};

// One model's experts: owned by the model's store buffers and by whoever holds this handle. Every method may be called
// from any thread, at any time between the model's first context and the handle's end; after the model is freed the
// slots are gone, and methods that would touch the device do nothing.
class Experts {
  public:
    virtual ~Experts() = default;

    // Threads move the experts and read them: in a child process there are none.
    const HomeProcess home;

    // Layers are known once the first context of the model exists (they are found in its graph); before, n_layer() is
    // 0.
    virtual int       n_layer() const     = 0;
    virtual int       n_expert() const    = 0; // the maximum over layers: the N of all [L, N] arrays
    virtual LayerInfo layer(int il) const = 0;

    // Allocates `n_slots` slots on the device, shared out over the pools by their layers' numbers of experts; replaces
    // and empties what was there. Throws MemoryError naming how many would fit, and InputError naming the limit where
    // kernels could not address so many of this size in one tensor.
    virtual void attach_slots(int n_slots) = 0;
    // How many slots fit into the device's free memory less `margin` bytes, and can be addressed.
    virtual int       slots_that_fit(size_t margin) const = 0;
    virtual SlotStats slots() const                       = 0;
    // Slots of every pool, [n_pool].
    virtual std::vector<int> pool_slots() const = 0;

    // How the experts lie in host memory, for reports: "pinned" (the loader copied them into memory of the device's
    // driver), "pinned mapping" (the file's mapping, registered with the driver), "partly pinned" (a part of it is, and
    // the others are staged), "staged" (pageable; copies go through a pinned ring), "pageable", "paged" (more than
    // memory holds: read from the file's mapping as they are needed).
    virtual std::string host_memory() const = 0;
    // Known as the layers are.
    virtual HostBytes host_bytes() const = 0;

    // The plan: the state the slots are driven toward, from now on, in the background. priority[L * N] and
    // threshold[L]: an expert is wanted when priority >= threshold of its layer; the highest priority is loaded first,
    // and a load never evicts equal or higher priority.
    virtual void submit(const int32_t * priority, const int32_t * threshold) = 0;
    // Returns when no wanted expert could be loaded any more, or after `timeout_s`; true in the first case.
    virtual bool settle(double timeout_s) = 0;
    // slot_of[L * N]: the slot of every expert in its pool, -1 when not resident.
    virtual void residency(int32_t * slot_of) const = 0;

    // Whether decodes from now on count as demand. Off while a prompt is read and while the library warms up.
    virtual void set_counting(bool counting) = 0;
    // demand[L * N]: activations since the last call, then zeroed. Returns the steps (graphs) they stem from.
    virtual int take_demand(int32_t * demand) = 0;
    // The experts of the last execution of every layer that counted, by token: ids[n_layer * n_tokens * n_used] of the
    // largest counts, -1 where a layer had fewer. Returns (n_tokens, n_used).
    virtual std::pair<int, int> routes(std::vector<int32_t> & ids) const = 0;
    // costs[L]: of the executions since the last call, then zeroed.
    virtual void take_layer_costs(LayerCost * costs) = 0;
    // Called after each execution that counts, on the thread that decodes, when all that the device needs for it is
    // queued; demand[n_expert of the layer] is what the layer was asked for since the last take_demand(). It must not
    // throw. Null: nobody listens, which costs nothing; else the host waits for the ids of wholly resident layers too.
    // A call that another thread has begun may end after this one returns.
    using LayerListener = std::function<void(int il, const std::vector<int32_t> & demand)>;
    virtual void set_layer_listener(LayerListener listener) = 0;
    // Batches with more tokens than this bypass counting whatever set_counting says (prompts); default 64.
    virtual void set_step_tokens(int n_max) = 0;

    // Batches of `n` tokens and more that do not count as demand have all their experts copied through the device and
    // are computed there (weight_stream.h); 0: never. Slots are not touched. Default 0.
    virtual void set_stream_tokens(int n) = 0;
    // Device memory that this takes, from the first such batch on; slots_that_fit() leaves room for it.
    virtual size_t stream_bytes() const = 0;
    // From the next graph on, every layer's input is shown to the router of the one `n_layers` behind it, and what that
    // would choose is loaded before all that the plan wants (lookahead.h); 0, the default: not.
    virtual void set_lookahead(int n_layers) = 0;

    virtual ExpertStats stats() const = 0;
    // Where blocks and copies are recorded; off until somebody starts it.
    virtual std::shared_ptr<Trace> trace() const = 0;
};

// Models loaded on this thread while the scope lives have their experts in `experts()`. Scopes nest; each is used for
// one model. Without a scope, a model's experts are kept all the same, and nobody has a handle on them (all on the
// CPU).
class LoadScope {
  public:
    // `paged`: the experts are more than memory holds: nothing is read of the file before it is needed, or pinned.
    // `copies`: what copies the model's files to huge pages; null: they are mapped.
    explicit LoadScope(bool paged = false, std::shared_ptr<HugeCopies> copies = nullptr);
    ~LoadScope();
    LoadScope(const LoadScope &)             = delete;
    LoadScope & operator=(const LoadScope &) = delete;

    std::shared_ptr<Experts> experts() const;
    HugeCopies *             copies() const { return copies_.get(); }

  private:
    std::shared_ptr<Experts>    experts_;
    std::shared_ptr<HugeCopies> copies_;
    LoadScope *                 outer_;
};

} // namespace spac
