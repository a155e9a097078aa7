// What of a loop is not closed yet.
#pragma once

#include <atomic>
#include <mutex>
#include <set>

namespace spac {

// What a closing loop cancels.
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
