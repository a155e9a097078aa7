// The demand that decoding made on one model's experts, and its costs: demand, costs by layer, routes, wasted uploads.
//
// Threads: SPAC streams count, the reconciler notes what it moved, and the policy takes the sums. The counter's own
// mutex guards all of it. No thread waits for anything while it holds the mutex, and a listener is called without it.
#pragma once

#include "backend/experts/experts.h"
#include "core/mask.h"
#include "core/residency.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spac {

class DemandCounter {
  public:
    // ---- the choice of executions that count
    void set_counting(bool counting);
    void set_step_tokens(int n_max);
    void set_tail_tokens(int n_tokens);
    // Returns of how many tokens at the end of a graph that does not count the routes are noted.
    int  tail_tokens() const { return tail_tokens_.load(std::memory_order_relaxed); }
    void set_parts(const std::vector<int> & n_tokens);
    // Returns true if a block counts as demand in a graph of n_tokens.
    bool counts(int n_used, int n_tokens, int n_expert) const;

    // ---- the execution side
    // Counts one execution of a block. ids[t][u] has n_tokens x n_used entries, with `stride` bytes from row to row. A
    // null `mask` means that the host computed all of it. `resident` is the mask without the experts that were loaded
    // for this execution.
    void count(int il, const int32_t * ids, size_t stride, int n_used, int n_tokens, int n_expert, const Mask * mask,
               const Mask * resident);
    // Notes the routes of the last tokens of an execution that does not count. `ids` are those of n_tokens tokens.
    void note_tail(int il, const int32_t * ids, size_t stride, int n_used, int n_tokens);
    // Adds the times that an execution that counts took on the thread that decodes.
    void add_times(int il, int64_t wait_ns, int64_t host_ns);
    void end_step(); // notes that a graph that counted has ended
    // Returns true if there is a layer listener.
    bool listens() const { return listens_.load(std::memory_order_relaxed); }
    // Calls the listener for an execution that count() has counted.
    void raise_layer(int il);

    // ---- for the reconciler, under the mutex that publishes masks, so that no execution uses a mask before its note
    void note_loaded(const std::vector<Residency::Load> & loads);
    void note_evicted(const std::vector<Residency::Eviction> & evictions);

    // ---- for the policy; Experts describes them. Arrays have n_layer rows of n_expert entries.
    int                       take(int32_t * demand, int n_layer, int n_expert);
    void                      take_layer_costs(LayerCost * costs, int n_layer);
    std::vector<ExpertCounts> take_parts();
    std::pair<int, int>       routes(std::vector<int32_t> & ids, int n_layer) const;
    void                      set_listener(Experts::LayerListener listener);
    void                      add_to(ExpertStats & stats) const;
    // Returns the activations of a layer so far, and those of them whose expert was resident.
    std::pair<uint64_t, uint64_t> activations_of(int il) const;

  private:
    struct Layer {
        std::vector<int32_t> demand; // [n_expert of the layer]
        std::vector<char>    fresh;  // by expert: resident, and not used since it was loaded
        uint64_t             activations = 0, activations_hit = 0;
        LayerCost            cost = {};
        // of the last execution that counted, or of a tail; `routes` is as long as the largest execution so far needed
        int                  n_tokens = 0, n_used = 0;
        std::vector<int32_t> routes;
        int                  n_parted = 0; // tokens that were counted since the last set_parts()
    };

    Layer & at(int il);
    // Copies the routes of all tokens into the layer.
    static void note_routes(Layer & layer, const int32_t * ids, size_t stride, int n_used, int n_tokens);
    // Adds an execution, whose routes are in the layer, to the counts of the parts.
    void count_parts(Layer & layer, const Mask * mask, const Mask * resident);

    mutable std::mutex mutex_;
    bool               counting_    = true;
    int                step_tokens_ = 64;
    std::vector<Layer> layers_;
    int                n_steps_     = 0;
    uint64_t           activations_ = 0, activations_hit_ = 0, distinct_ = 0, distinct_hit_ = 0;
    uint64_t           activations_loaded_ = 0, misses_cpu_ = 0, misses_loaded_ = 0;
    uint64_t           uploads_wasted_ = 0;
    std::vector<char>  seen_; // scratch memory of count()

    std::vector<int>          part_of_row_; // by token of the parts; empty: there are none
    std::vector<ExpertCounts> parts_;
    std::vector<int>          last_part_; // scratch memory of count_parts(), by expert
    std::atomic<int>          tail_tokens_{0};

    std::shared_ptr<const Experts::LayerListener> listener_; // changes together with listens_
    std::atomic<bool>                             listens_{false};
};

} // namespace spac
