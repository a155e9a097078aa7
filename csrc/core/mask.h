// The ids mask: the immutable table that turns a layer's router ids into slot ids.
//
// One version of a layer's mask is read by both sides of one execution of its block, so host and device compute exact
// complements. A version holds a lease on every slot that it names; a slot whose expert was evicted returns to the free
// ones when the last version that names it dies, and launches under way keep their version alive. That, and nothing
// else, is why reuse of a slot is safe.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

// Calls `on_end` when the last holder lets go, on whatever thread that is.
class SlotLease {
  public:
    explicit SlotLease(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
    ~SlotLease() {
        on_end_();
    }
    SlotLease(const SlotLease &)             = delete;
    SlotLease & operator=(const SlotLease &) = delete;

  private:
    std::function<void()> on_end_;
};

struct Mask {
    uint64_t                                      version    = 0; // unique among a model's masks
    int                                           n_resident = 0;
    std::vector<int32_t>                          slot_of; // [n_expert], -1 = not on this device: skip
    std::vector<std::shared_ptr<const SlotLease>> leases;  // [n_expert], null where slot_of is -1

    bool none() const {
        return n_resident == 0;
    }
    bool all() const {
        return n_resident == static_cast<int>(slot_of.size());
    }
};

} // namespace spac
