// A lock between a loop that computes nearly all the time and threads that seldom have work. Those who wait go first.
#pragma once

#include "core/not_copied.h"

#include <condition_variable>
#include <mutex>
#include <thread>

namespace spac {

class LoopLock : NotCopied {
  public:
    // Begins to compute, when nobody works or waits to work.
    void enter() {
        std::unique_lock hold(lock_);
        changed_.wait(hold, [&] { return owner_ == std::thread::id() && n_waiting_ == 0; });
        owner_ = std::this_thread::get_id();
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
    explicit LoopRegion(LoopLock & lock) : lock_(lock) { lock_.enter(); }
    ~LoopRegion() { lock_.leave(); }

  private:
    LoopLock & lock_;
};

} // namespace spac
