// The implementation of Experts: the state that a model's store, its SPAC streams and its reconciler share.
//
// Threads: the policy calls the Experts interface from any thread. SPAC streams (one per context) call the execution
// side. The reconcilers' workers call the residency side. One mutex guards all state but the demand, which has its own
// mutex (and may be locked under this one). A thread that changes which experts of a device have slots also holds
// `driving` of the device's part: the part's reconciler, and the thread that decodes for its misses. No thread waits
// while it holds the mutex, and no device call is made under it.
#pragma once

#include "backend/experts/demand.h"
#include "backend/experts/draft_copies.h"
#include "backend/experts/experts.h"
#include "backend/experts/lookahead.h"
#include "backend/experts/slot_storage.h"
#include "core/pinned_ranges.h"
#include "core/residency.h"
#include "core/slot_table.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spac {

struct Router; // graph/router.h
class Reconciler;

// Counters of the work of a model's streams and its reconciler. Any thread may add to them. experts.h describes each.
struct Counters {
    std::atomic<uint64_t> blocks{0}, blocks_device{0}, blocks_host{0};
    std::atomic<uint64_t> uploads{0}, upload_bytes{0}, upload_failures{0}, upload_ns{0}, evictions{0};
    std::atomic<uint64_t> host_waits{0}, host_wait_ns{0}, host_compute_ns{0}, download_bytes{0}, join_bytes{0};
    std::atomic<uint64_t> graphs_prepared{0}, queue_ns{0}, ahead_ns{0}, early_bytes{0}, early{0}, early_right{0};
    std::atomic<uint64_t> load_bytes{0};
    std::atomic<uint64_t> blocks_streamed{0}, stream_bytes{0}, stream_slot_bytes{0}, stream_ring_bytes{0};

    void add_to(ExpertStats & stats) const; // fills in the fields that are counted here
};

// A device's part of a model's experts: the slots of the layers that the device computes, and what moves experts there.
//
// Every part knows all layers of the model, in their order. It has slots for those of its device alone: the pools of
// other devices' layers are empty in it. So one plan serves all parts, and each drives its own slots toward it, over
// its own link.
struct ExpertsPart {
    explicit ExpertsPart(ggml_backend_dev_t on);
    ~ExpertsPart();

    const ggml_backend_dev_t device;

    // Held for a round of the reconciler, and while an execution's misses change the slots. It is locked before the
    // mutex of ModelExperts, which guards what follows.
    std::mutex                         driving;
    std::shared_ptr<const SlotStorage> storage;
    std::unique_ptr<Residency>         residency; // null without slots
    std::unique_ptr<Reconciler>        reconciler;

    std::atomic<size_t>   stream_held{0}; // bytes of contexts' weight streams
    std::atomic<uint64_t> uploads{0}, upload_bytes{0}, upload_failures{0}, upload_ns{0}, evictions{0};
};

// The list of one model's MoE layers. They are found in its graphs one by one, numbered in the order in which they run,
// and put into pools.
//
// The owner's mutex guards the list. Once it is frozen, layers keep their addresses, and only their n_used changes.
class ExpertLayers {
  public:
    struct Layer {
        LayerInfo                 info;
        std::vector<ExpertWeight> weights;
        ggml_backend_dev_t        device;
    };

    // Returns the layer with these weights (in the order of their use). It adds a new layer of `device` if the list is
    // not frozen yet, and returns -1 otherwise. The device limits the size of a pool; if it is null, only the range of
    // kernels' indices does.
    int find_or_add(const std::vector<const ggml_tensor *> & weights, int n_used, ggml_backend_dev_t device);
    // Closes the list, because the policy has seen it. Layers that are found later run on the host.
    void freeze() { frozen_ = true; }

    bool          empty() const { return layers_.empty(); }
    int           size() const { return static_cast<int>(layers_.size()); }
    auto          begin() const { return layers_.begin(); }
    auto          end() const { return layers_.end(); }
    const Layer & operator[](int il) const { return layers_[il]; }
    int           n_expert() const; // returns the maximum over layers

    // ---- devices, in the order of their first layers
    const std::vector<ggml_backend_dev_t> & devices() const { return devices_; }

    // ---- pools
    int n_pool() const { return n_pool_; }
    // Returns the weights of one layer of each pool, whose shapes the pool's slots have.
    std::vector<std::vector<ExpertWeight>> prototypes() const;
    // Returns for each pool the most slots that one tensor may stack on the pool's device.
    std::vector<int> pool_limits() const;
    // Returns the layers in a slot table's form.
    std::vector<SlotTable::Layer> table_layers() const;
    // Returns the same, where layers of other devices have no experts.
    std::vector<SlotTable::Layer> table_layers_on(int device) const;

  private:
    int pool_for(const Layer & layer, ggml_backend_dev_t device) const;

    std::vector<Layer>              layers_;
    std::vector<ggml_backend_dev_t> devices_;
    int                             n_pool_ = 0;
    bool                            frozen_ = false;
};

class ModelExperts : public Experts, public std::enable_shared_from_this<ModelExperts> {
  public:
    ModelExperts();
    ~ModelExperts() override;

    // ---- Experts
    int                 n_layer() const override;
    int                 n_expert() const override;
    LayerInfo           layer(int il) const override;
    SlotStats           slots() const override;
    std::vector<int>    pool_slots() const override;
    std::string         host_memory() const override;
    HostBytes           host_bytes() const override;
    void                submit(const int32_t * priority, const int32_t * threshold) override;
    bool                settle(double timeout_s) override;
    void                residency(int32_t * slot_of) const override;
    void                attach_draft_copies(const std::string & type, int n_threads) override;
    size_t              draft_copy_bytes(const std::string & type) const override;
    size_t              draft_bytes() const override;
    void                set_draft_pass(bool on) override;
    void                set_counting(bool counting) override { counter().set_counting(counting); }
    int                 take_demand(int32_t * counts) override;
    std::pair<int, int> routes(std::vector<int32_t> & ids) const override { return counter().routes(ids, n_layer()); }
    void                take_layer_costs(LayerCost * costs) override { demand.take_layer_costs(costs, n_layer()); }
    void        set_layer_listener(LayerListener listener) override { demand.set_listener(std::move(listener)); }
    void        set_step_tokens(int n_max) override { demand.set_step_tokens(n_max); }
    void        set_tail_tokens(int n_tokens) override { demand.set_tail_tokens(n_tokens); }
    void        set_stream_tokens(int n) override { stream_tokens_ = n; }
    void        set_staged_tokens(int n) override { staged_tokens_ = n; }
    size_t      stream_bytes() const override;
    void        set_lookahead(int n_layers) override;
    void        set_early_rows(bool on) override { reads_early = on; }
    void        set_rehearsing(bool on) override { rehearses = on; }
    void        set_miss(Miss how, bool most_recent) override;
    ExpertStats stats() const override;

    std::vector<ExpertDevice> devices() const override;
    void                      attach_slots(int n_slots, const std::vector<size_t> & margins) override;
    int                       slots_that_fit(const std::vector<size_t> & margins) const override;

    void                      set_parts(const std::vector<int> & n_tokens) override { demand.set_parts(n_tokens); }
    std::vector<ExpertCounts> take_parts() override { return demand.take_parts(); }

    std::shared_ptr<Trace> trace() const override { return trace_; }
    Trace &                tracer() const { return *trace_; }

    // ---- the store's side: a wrapped device that a store belongs to, the kind of memory of the weights there, and
    // their end
    enum class HostMemory { pinned, pinned_mapping, pageable };
    void set_device(ggml_backend_dev_t inner, HostMemory memory);
    void store_gone();
    bool is_gone() const; // true after store_gone()
    // Notes why a part of one of its files is not pinned. unpinned() returns the worst reason that was noted.
    void     note_unpinned(Unpinned why);
    Unpinned unpinned() const { return unpinned_; }
    // Notes that the experts exceed the memory. Call it before the model is loaded.
    void set_paged() { paged_ = true; }
    bool paged() const { return paged_; }

    // ---- the execution side
    // Returns the layer with these weights (in the order of their use). It adds a new layer, on the device of the
    // weights' store, if the list is not frozen yet, and returns -1 otherwise.
    int find_or_add_layer(const std::vector<const ggml_tensor *> & weights, int n_used);
    // Keeps the router of a layer, for drafts that show it their states. router() returns null if none was found.
    void                          set_router(int il, std::shared_ptr<const Router> router);
    std::shared_ptr<const Router> router(int il) const;
    // The state that one execution of a block reads, all taken at one moment. The mask is null without slots, and if il
    // is negative.
    struct Snapshot {
        std::shared_ptr<const Mask>        mask;
        std::shared_ptr<const SlotStorage> storage;
        uint64_t                           generation = 0; // of the storage
    };
    Snapshot snapshot(int il) const;
    int      pool_of(int il) const;

    bool draft_pass() const { return draft_pass_; }
    // Returns the low-bit copies; null without them.
    std::shared_ptr<const DraftCopies> draft_copies() const;

    // Logs a block that cannot be split, once per model and reason.
    enum class Unsplit { chain, kernels, late };
    void note_unsplit(const char * weight, Unsplit why);
    // Sets the layer that runs next. It may be one past the last.
    void set_cursor(int il) { cursor_ = il; }
    int  stream_tokens() const { return stream_tokens_; }
    int  staged_tokens() const { return staged_tokens_; }
    // Counts a device's memory of a context's weight stream as long as the stream keeps the returned handle.
    std::shared_ptr<void> hold_stream(ggml_backend_dev_t device, size_t bytes);
    // Notes that a graph of a stream that counted as demand has ended, with its first and last layer. A step that
    // several devices share has one or more graphs for each.
    void end_step(const void * stream, int first, int last);
    // Returns what the streams of contexts on several devices share, which the first call makes, and which lives as
    // long as someone holds it. With one device, each stream gets its own.
    std::shared_ptr<void> shared_among_streams(const std::function<std::shared_ptr<void>()> & make);

    // ---- looking ahead by layers, for the thread that decodes: see core/residency.h
    void foresee(int il, std::vector<int32_t> experts);
    void note_used(int il, std::vector<int32_t> experts);

    // ---- misses that are loaded within their layer (core/residency.h)
    Miss miss() const { return miss_; }
    // Gives slots to missing experts of a layer that is being executed. It drops `now.mask`, whose slots may be reused,
    // and returns the mask of this execution. If the slots of `now` were replaced, it does nothing: the mask is null.
    struct Misses {
        Residency::Misses                  of;
        std::shared_ptr<const SlotStorage> storage;
        uint64_t                           generation = 0;
    };
    Misses begin_misses(int il, const std::vector<int32_t> & missing, const std::vector<char> & used, Snapshot & now);
    // Publishes the experts of a layer. All copies have ended.
    void                              finish_misses(int il, const Misses & misses);
    const std::vector<ExpertWeight> & weights_of(int il) const; // of a layer that was met; the list stays

    Counters          counters;
    DemandCounter     demand;       // the experts that executions ask for
    DemandCounter     draft_demand; // the experts that draft passes ask for
    Lookahead         lookahead;
    std::atomic<bool> reads_early{false}; // split/early_rows.h
    std::atomic<bool> rehearses{false};
    PinnedRanges      pinned; // in host memory

  private:
    friend class Reconciler;

    std::vector<const ggml_tensor *> weights() const; // of all layers; throws InputError if there are none

    // Returns the counter of the pass that is on.
    const DemandCounter & counter() const { return draft_pass_ ? draft_demand : demand; }
    DemandCounter &       counter() { return draft_pass_ ? draft_demand : demand; }

    // Returns the part of a layer's device. Parts live as long as this object.
    ExpertsPart & part_of(int il) const;
    ExpertsPart & part_of_locked(int il) const { return *parts_[static_cast<size_t>(layers_[il].info.device)]; }

    size_t           stream_bytes_locked(int device) const;
    size_t           mask_bytes_locked(int device) const;
    int              slots_that_fit_locked(int device, size_t margin) const;
    HostBytes        host_bytes_locked() const;
    int              reserve_locked(int pool) const;
    void             note_evictions_locked(ExpertsPart & part);
    void             check_one_device_locked() const;
    std::vector<int> share_between(int n_slots, const std::vector<size_t> & margins) const;
    void             detach();

    // the trace that records spans; never replaced
    const std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();

    mutable std::mutex      mutex_;
    std::condition_variable settled_; // signals that a reconciler became idle
    mutable ExpertLayers    layers_;  // n_layer() freezes the list

    std::vector<std::shared_ptr<const Router>> routers_; // by layer

    std::weak_ptr<void>                       shared_; // among streams
    std::vector<std::unique_ptr<ExpertsPart>> parts_;  // by device, in the order of layers_.devices()

    ggml_backend_dev_t                 device_ = nullptr;            // one of the devices
    HostMemory                         memory_ = HostMemory::pinned; // the worst among its buffers
    bool                               gone_   = false;
    std::atomic<bool>                  paged_{false};
    std::atomic<Unpinned>              unpinned_{Unpinned::none};
    std::shared_ptr<const DraftCopies> copies_;
    std::atomic<bool>                  draft_pass_{false};
    uint64_t                           storage_generation_ = 0; // of the storage of all parts
    std::atomic<Miss>                  miss_{Miss::cpu};
    bool                               most_recent_ = false;
    std::atomic<int>                   cursor_{0};
    int                                last_counted_ = -1;      // the last layer of the last graph that counted
    const void *                       last_stream_  = nullptr; // the stream of that graph
    std::atomic<int>                   stream_tokens_{0};
    std::atomic<int>                   staged_tokens_{std::numeric_limits<int>::max()};
    std::array<std::atomic<bool>, 3>   unsplit_noted_{}; // by reason
};

// Returns the handle of the scope that is open on this thread, or a new handle that nothing else holds.
std::shared_ptr<ModelExperts> experts_for_load();

} // namespace spac
