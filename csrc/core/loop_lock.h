// A lock between a loop that computes nearly all the time and threads that seldom have work. Those who wait go first.
#pragma once

#include "core/not_copied.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace spac {

class LoopLock : NotCopied {
  public:
    // Begins to compute, when nobody works or waits to work. Returns true if it waited.
    bool enter() {
        std::unique_lock hold(lock_);
        const auto       is_free = [&] { return owner_ == std::thread::id() && n_waiting_ == 0; };
        const bool       waits   = !is_free();
        changed_.wait(hold, is_free);
        owner_ = std::this_thread::get_id();
        return waits;
    }
    // Begins to work, when nobody computes or works.
    void work() {
        std::unique_lock hold(lock_);
        ++n_waiting_;
        changed_.wait(hold, [&] { return owner_ == std::thread::id(); });
        --n_waiting_;
        owner_ = std::this_thread::get_id();
    }
    // Ends what this thread has begun.
    void leave() {
        {
            const std::lock_guard hold(lock_);
            owner_ = {};
        }
        changed_.notify_all();
    }
    // Returns true if this thread computes or works.
    bool is_mine() const {
        const std::lock_guard hold(lock_);
        return owner_ == std::this_thread::get_id();
    }

  private:
    mutable std::mutex      lock_; // guards all below
    std::condition_variable changed_;
    std::thread::id         owner_;
    int                     n_waiting_ = 0; // threads that wait to work
};

// A region in which the loop computes, and nobody changes the slots.
class LoopRegion : NotCopied {
  public:
    explicit LoopRegion(LoopLock & lock) : lock_(lock), has_waited_(lock_.enter()) {}
    ~LoopRegion() { lock_.leave(); }

    bool has_waited() const { return has_waited_; }

  private:
    LoopLock & lock_;
    bool       has_waited_;
};

} // namespace spac
