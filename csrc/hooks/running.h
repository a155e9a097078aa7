// The list of a loop's answers and texts that are not closed. A loop that closes cancels them.
#pragma once

#include <atomic>
#include <mutex>
#include <set>

namespace spac {

// An answer or a text that a loop cancels when it closes.
class Cancelled {
  public:
    virtual void cancel_now() noexcept = 0;

  protected:
    ~Cancelled() = default;
};

// The answers and texts that are not closed.
class Running {
  public:
    void add(Cancelled & each) {
        const std::lock_guard hold(lock_);
        all_.insert(&each);
    }
    void remove(Cancelled & each) {
        const std::lock_guard hold(lock_);
        all_.erase(&each);
    }
    bool stops() const { return stops_.load(); }
    void stop() {
        stops_.store(true);
        const std::lock_guard hold(lock_);
        for (auto * const each : all_) {
            each->cancel_now();
        }
    }

  private:
    std::mutex            lock_;
    std::set<Cancelled *> all_;
    std::atomic<bool>     stops_{false};
};

} // namespace spac
