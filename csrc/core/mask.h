// The ids mask: the immutable table that turns a layer's router ids into slot ids.
//
// Both sides of one execution of a block read one version of its layer's mask, so host and device compute exact
// complements. A version holds a lease on every slot that it names. The slot of an evicted expert becomes free when the
// last version that names it dies, and launches under way keep their version alive. Reuse of a slot is safe for this
// reason alone.
#pragma once

#include "core/not_copied.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spac {

// Calls `on_end` when the last holder lets go, on whatever thread that is.
class SlotLease : NotCopied {
  public:
    explicit SlotLease(std::function<void()> on_end) : on_end_(std::move(on_end)) {}
    ~SlotLease() { on_end_(); }

  private:
    std::function<void()> on_end_;
};

// Takes slots back when the last mask version that names them dies, and wakes the reconciler. It outlives the model,
// because the last mask may.
class SlotReturns {
  public:
    uint64_t ticket() const {
        const std::lock_guard lock(mutex_);
        return ticket_;
    }
    void give_back(int pool, int slot) {
        const std::lock_guard lock(mutex_);
        slots_.emplace_back(pool, slot);
        ++ticket_;
        changed_.notify_all();
    }
    void wake() {
        const std::lock_guard lock(mutex_);
        ++ticket_;
        changed_.notify_all();
    }
    std::vector<std::pair<int, int>> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(slots_, {});
    }
    // Waits until something has happened since `ticket` was read, so that no wake-up is lost.
    void wait_past(uint64_t ticket) const {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ticket_ != ticket; });
    }

  private:
    mutable std::mutex               mutex_;
    mutable std::condition_variable  changed_;
    uint64_t                         ticket_ = 0;
    std::vector<std::pair<int, int>> slots_; // (pool, slot)
};

struct Mask {
    uint64_t                                      version    = 0; // unique in the process
    int                                           n_resident = 0;
    std::vector<int32_t>                          slot_of; // [n_expert], -1 = not on this device: skip
    std::vector<std::shared_ptr<const SlotLease>> leases;  // [n_expert], null where slot_of is -1

    bool none() const { return n_resident == 0; }
    bool all() const { return n_resident == static_cast<int>(slot_of.size()); }
};

} // namespace spac
