// Looking ahead by layers: a block's input is shown to the router of a block that runs some layers later. What that
// would choose is what it will choose in most cases (the residual stream changes slowly), so what is not resident of it
// is loaded meanwhile, before anything that the plan wants, and is a hit if it arrives before its layer begins.
//
// How far a prediction can be trusted is measured, by the place that an expert has in it: experts at places that were
// right too seldom are not loaded.
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
    static constexpr int most_tokens = 16; // of a batch that is looked ahead for
    // What is right less often is not worth the way over the link.
    static constexpr float least_trust = 0.5f;

    // In layers; 0: off.
    void set_distance(int n) { distance_ = n; }
    int  distance() const { return distance_.load(std::memory_order_relaxed); }

    // The places of a prediction that are to be loaded: the first so many.
    int n_trusted(int n_used) const;
    // predicted[n_used] for a token, and what its router chose.
    void compare(const int32_t * predicted, const int32_t * chosen, int n_used);

    // A layer's ids have arrived; and how long it is from one layer's to the next's, in nanoseconds (0: unknown).
    void    note_layer(int il, int64_t now_ns);
    int64_t layer_ns() const { return layer_ns_; }

    // (predicted experts, those of them that were chosen), so far.
    uint64_t n_foreseen() const { return n_foreseen_; }
    uint64_t n_right() const { return n_right_; }

  private:
    std::atomic<int>               distance_{0};
    mutable std::mutex             mutex_;
    std::array<float, most_places> trust_ = starting_trust(); // by place: the share that was right, of late
    std::atomic<uint64_t>          n_foreseen_{0}, n_right_{0};
    std::atomic<int64_t>           layer_ns_{0};
    int                            last_layer_    = -1;
    int64_t                        last_layer_at_ = 0;

    static std::array<float, most_places> starting_trust();
};

} // namespace spac
