// Lookahead by layers: it predicts the experts of a block that runs some layers later, and measures the predictions.
//
// A block's input also goes to the router of the later block. The residual stream changes slowly, so in most cases the
// router will choose the same experts when its layer runs. Those that are not resident are loaded meanwhile, before
// anything that the plan wants. An expert is a hit if it arrives before its layer begins.
//
// Trust is measured by the place that an expert has in the prediction's ranking. Experts at places that were right too
// seldom are not loaded.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

namespace spac {

class Lookahead {
  public:
    static constexpr int most_places = 32;
    static constexpr int most_tokens = 16; // larger batches are not looked ahead for
    // The least trust in a place. A place that is right less often is not worth its copies over the link.
    static constexpr float least_trust = 0.5f;

    Lookahead() { trust_.fill(0.7f); }

    // Sets the distance in layers; 0 switches it off.
    void set_distance(int n) { distance_ = n; }
    int  distance() const { return distance_.load(std::memory_order_relaxed); }

    // Returns the number of places, from the first on, whose experts are to be loaded.
    int n_trusted(int n_used) const;
    // Compares one token's predicted[n_used] with the experts that its router chose.
    void compare(const int32_t * predicted, const int32_t * chosen, int n_used);

    // Notes that a layer's ids have arrived. layer_ns() returns the time between two layers' ids in nanoseconds (0:
    // unknown).
    void    note_layer(int il, int64_t now_ns);
    int64_t layer_ns() const { return layer_ns_; }

    // Return the number of predicted experts so far, and of those among them that were chosen.
    uint64_t n_foreseen() const { return n_foreseen_; }
    uint64_t n_right() const { return n_right_; }

  private:
    std::atomic<int>               distance_{0};
    mutable std::mutex             mutex_;
    std::array<float, most_places> trust_; // by place: the share of recent predictions that was right
    std::atomic<uint64_t>          n_foreseen_{0}, n_right_{0};
    std::atomic<int64_t>           layer_ns_{0};
    int                            last_layer_    = -1;
    int64_t                        last_layer_at_ = 0;
};

} // namespace spac
