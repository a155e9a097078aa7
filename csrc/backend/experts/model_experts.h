// The implementation of Experts: the state that a model's store, its SPAC streams and its reconciler share.
//
// Threads: the policy calls the Experts interface from any thread. SPAC streams (one per context) call the execution
// side. The reconciler's worker calls the residency side. One mutex guards all state but the demand, which has its own
// mutex (and may be locked under this one). No thread waits while it holds the mutex, and no device call is made under
// it.
#pragma once

#include "backend/experts/counters.h"
#include "backend/experts/demand.h"
#include "backend/experts/expert_layers.h"
#include "backend/experts/experts.h"
#include "backend/experts/lookahead.h"
#include "backend/experts/slot_storage.h"
#include "core/pinned_ranges.h"
#include "core/residency.h"

#include <array>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <utility>

namespace spac {

class Reconciler;

class ModelExperts : public Experts, public std::enable_shared_from_this<ModelExperts> {
  public:
    ModelExperts();
    ~ModelExperts() override;

    // ---- Experts
    int                 n_layer() const override;
    int                 n_expert() const override;
    LayerInfo           layer(int il) const override;
    void                attach_slots(int n_slots) override;
    int                 slots_that_fit(size_t margin) const override;
    SlotStats           slots() const override;
    std::vector<int>    pool_slots() const override;
    std::string         host_memory() const override;
    HostBytes           host_bytes() const override;
    void                submit(const int32_t * priority, const int32_t * threshold) override;
    bool                settle(double timeout_s) override;
    void                residency(int32_t * slot_of) const override;
    void                set_counting(bool counting) override { demand.set_counting(counting); }
    int                 take_demand(int32_t * counts) override;
    std::pair<int, int> routes(std::vector<int32_t> & ids) const override;
    void                take_layer_costs(LayerCost * costs) override;
    void                set_layer_listener(LayerListener listener) override;
    void                set_step_tokens(int n_max) override { demand.set_step_tokens(n_max); }
    void                set_stream_tokens(int n) override { stream_tokens_ = n; }
    void                set_staged_tokens(int n) override { staged_tokens_ = n; }
    size_t              stream_bytes() const override;
    void                set_lookahead(int n_layers) override;
    ExpertStats         stats() const override;

    std::shared_ptr<Trace> trace() const override { return trace_; }
    Trace &                tracer() const { return *trace_; }

    // ---- the store's side: the wrapped device that slots live on, the kind of memory of the weights, and their end
    enum class HostMemory { pinned, pinned_mapping, pageable };
    void set_device(ggml_backend_dev_t inner, HostMemory memory);
    void store_gone();
    // Notes why a part of one of its files is not pinned. unpinned() returns the worst reason that was noted.
    void     note_unpinned(Unpinned why);
    Unpinned unpinned() const { return unpinned_; }
    // Notes that the experts exceed the memory. Call it before the model is loaded.
    void set_paged() { paged_ = true; }
    bool paged() const { return paged_; }

    // ---- the execution side
    // Returns the layer with these weights (in the order of their use). It adds a new layer if the list is not frozen
    // yet, and returns -1 otherwise.
    int find_or_add_layer(const std::vector<const ggml_tensor *> & weights, int n_used);
    // The state that one execution of a block reads, all taken at one moment. The mask is null without slots, and if il
    // is negative.
    struct Snapshot {
        std::shared_ptr<const Mask>        mask;
        std::shared_ptr<const SlotStorage> storage;
        uint64_t                           generation = 0; // of the storage
    };
    Snapshot snapshot(int il) const;
    int      pool_of(int il) const;

    // Logs a block that cannot be split, once per model and reason.
    enum class Unsplit { chain, kernels, late };
    void note_unsplit(const char * weight, Unsplit why);
    // Sets the layer that runs next. It may be one past the last.
    void set_cursor(int il) { cursor_ = il; }
    int  stream_tokens() const { return stream_tokens_; }
    int  staged_tokens() const { return staged_tokens_; }
    // Counts the device memory of a context's weight stream as long as the stream keeps the returned handle.
    std::shared_ptr<void> hold_stream(size_t bytes);

    // ---- looking ahead by layers, for the thread that decodes: see core/residency.h
    void foresee(int il, std::vector<int32_t> experts);
    void note_used(int il, std::vector<int32_t> experts);

    Counters      counters;
    DemandCounter demand; // the experts that executions ask for
    Lookahead     lookahead;
    PinnedRanges  pinned; // in host memory

  private:
    friend class Reconciler;

    size_t    stream_bytes_locked() const;
    size_t    mask_bytes_locked() const;
    HostBytes host_bytes_locked() const;
    void      detach();

    // the trace that records spans; never replaced
    const std::shared_ptr<Trace> trace_ = std::make_shared<Trace>();

    mutable std::mutex      mutex_;
    std::condition_variable settled_; // signals that the reconciler became idle
    mutable ExpertLayers    layers_;  // n_layer() freezes the list

    ggml_backend_dev_t                 device_ = nullptr;
    HostMemory                         memory_ = HostMemory::pinned; // the worst among its buffers
    bool                               gone_   = false;
    std::atomic<bool>                  paged_{false};
    std::atomic<Unpinned>              unpinned_{Unpinned::none};
    std::shared_ptr<const SlotStorage> storage_;
    uint64_t                           storage_generation_ = 0;
    std::unique_ptr<Residency>         residency_; // null without slots
    std::atomic<int>                   cursor_{0};
    std::atomic<int>                   stream_tokens_{0};
    std::atomic<int>                   staged_tokens_{std::numeric_limits<int>::max()};
    std::atomic<size_t>                stream_held_{0};
    std::array<std::atomic<bool>, 3>   unsplit_noted_{}; // by reason
    std::unique_ptr<Reconciler>        reconciler_;
};

// Returns the handle of the scope that is open on this thread, or a new handle that nothing else holds.
std::shared_ptr<ModelExperts> experts_for_load();

} // namespace spac
