#include "core/parallel_copy.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <system_error>

namespace spac {
namespace {
// A thread sleeps when no copy has come for this time. Chunks of one upload follow each other sooner.
constexpr std::chrono::microseconds patience{200};
constexpr size_t                    page = 4096;
} // namespace

ParallelCopy::ParallelCopy(int n_threads) : n_threads_(std::max(1, n_threads)) {}

ParallelCopy::~ParallelCopy() {
    if (!home_.is_here()) { // the threads are not in this process
        for (std::thread & thread : threads_) {
            thread.detach();
        }
        return;
    }
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    wake_.notify_all();
    for (std::thread & thread : threads_) {
        thread.join();
    }
}

void ParallelCopy::start() {
    try {
        while (static_cast<int>(threads_.size()) + 1 < n_threads_) {
            threads_.emplace_back([this, index = static_cast<int>(threads_.size()) + 1] { work(index); });
        }
    } catch (const std::system_error &) {
        n_threads_ = static_cast<int>(threads_.size()) + 1;
    }
}

void ParallelCopy::copy(void * to, const void * from, size_t bytes) {
    if (n_threads_ > 1 && threads_.empty()) {
        start();
    }
    to_    = static_cast<char *>(to);
    from_  = static_cast<const char *>(from);
    bytes_ = bytes;
    if (threads_.empty()) {
        copy_slice(0);
        return;
    }
    n_at_work_ = static_cast<int>(threads_.size());
    {
        const std::lock_guard lock(mutex_); // a thread that is about to sleep has seen the old round, or sees this one
        ++round_;
    }
    wake_.notify_all();
    copy_slice(0);
    while (n_at_work_ > 0) {
        std::this_thread::yield();
    }
}

// Copies a slice of whole pages of the destination's length. The last one has what is left.
void ParallelCopy::copy_slice(int index) const {
    const size_t each  = (bytes_ / n_threads_ + page - 1) / page * page;
    const size_t begin = std::min(bytes_, index * each), end = index + 1 == n_threads_ ? bytes_ : begin + each;
    if (begin < std::min(bytes_, end)) {
        memcpy(to_ + begin, from_ + begin, std::min(bytes_, end) - begin);
    }
}

void ParallelCopy::work(int index) {
    uint64_t seen = 0;
    while (true) {
        const auto until = std::chrono::steady_clock::now() + patience;
        while (round_ == seen && !stop_ && std::chrono::steady_clock::now() < until) {
            std::this_thread::yield();
        }
        if (round_ == seen) {
            std::unique_lock lock(mutex_);
            wake_.wait(lock, [&] { return stop_ || round_ != seen; });
        }
        if (stop_) {
            return;
        }
        ++seen; // the caller starts no round before this one has ended
        copy_slice(index);
        --n_at_work_;
    }
}

} // namespace spac
