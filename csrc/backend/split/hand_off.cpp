#include "backend/split/hand_off.h"

#include "backend/device/stream_gate.h"

#include <utility>

namespace spac {

HandOff::~HandOff() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        started_.notify_all();
    }
    if (helper_.joinable()) {
        helper_.join();
    }
}

void HandOff::start(std::function<void()> launch) {
    const std::lock_guard lock(mutex_);
    launch_    = std::move(launch);
    launching_ = true;
    if (!helper_.joinable()) {
        helper_ = std::thread([this] { work(); });
    }
    started_.notify_one();
}

void HandOff::work() {
    std::unique_lock lock(mutex_);
    while (true) {
        started_.wait(lock, [&] { return stop_ || launching_; });
        if (stop_) {
            return;
        }
        lock.unlock();
        launch_();
        lock.lock();
        launching_ = false;
        pushed_.notify_one();
    }
}

bool HandOff::pop(HostJob & job) {
    std::unique_lock lock(mutex_);
    const auto       ready = [&] { return !launching_ || !jobs_.empty(); };
    for (Patience patience; !pushed_.wait_for(lock, Patience::look, ready);) {
        if (patience.over()) {
            throw Overdue("the thread that launches did not come back");
        }
    }
    if (jobs_.empty()) {
        return false;
    }
    job = std::move(jobs_.front());
    jobs_.pop_front();
    return true;
}

std::optional<LateMask> HandOff::end(const HostJob & job) {
    const std::lock_guard lock(mutex_);
    ended_mark_ = job.mark;
    if (deferred_.empty() || deferred_.front().first != job.mark) {
        return {};
    }
    const LateMask late = deferred_.front().second;
    deferred_.pop_front();
    return late;
}

bool HandOff::defer(const LateMask & late) {
    const std::lock_guard lock(mutex_);
    if (cancelled_ || ended_mark_ == pushed_mark_) {
        return false;
    }
    deferred_.emplace_back(pushed_mark_, late);
    return true;
}

void HandOff::served(const HostJob & job) {
    const std::lock_guard lock(mutex_);
    last_ = job.mark;
    if (--n_left_ <= n_awaited_) {
        served_.notify_one();
    }
}

size_t HandOff::n_left() {
    const std::lock_guard lock(mutex_);
    return n_left_;
}

std::vector<LateMask> HandOff::cancel() {
    const std::lock_guard lock(mutex_);
    std::vector<LateMask> unchosen;
    for (const auto & [mark, late] : deferred_) {
        unchosen.push_back(late);
    }
    deferred_.clear();
    jobs_.clear();
    n_left_    = 0;
    cancelled_ = true;
    served_.notify_one();
    return unchosen;
}

bool HandOff::idle() {
    std::unique_lock lock(mutex_);
    for (Patience patience; !pushed_.wait_for(lock, Patience::look, [&] { return !launching_; });) {
        if (patience.over()) {
            return false;
        }
    }
    return true;
}

bool HandOff::cancelled() {
    const std::lock_guard lock(mutex_);
    return cancelled_;
}

void HandOff::push(HostJob job) {
    const std::lock_guard lock(mutex_);
    if (cancelled_) {
        return;
    }
    pushed_mark_ = job.mark;
    jobs_.push_back(std::move(job));
    ++n_left_;
    pushed_.notify_one();
}

uint64_t HandOff::make_room(size_t most) {
    std::unique_lock lock(mutex_);
    if (n_left_ >= most) {
        n_awaited_ = most / 2;
        served_.wait(lock, [&] { return n_left_ <= n_awaited_; });
    }
    n_awaited_ = 0;
    return last_;
}

} // namespace spac
