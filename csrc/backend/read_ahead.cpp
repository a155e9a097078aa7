#include "backend/read_ahead.h"

#include "backend/slot_storage.h"

#include <algorithm>
#include <fstream>
#include <string>

#include <sys/mman.h>
#include <unistd.h>

namespace spac {
namespace {

// Asking may take a thread as long as the system needs to find room, so there are some.
constexpr int n_threads = 2;
// Linux reads no more for one request than it would read ahead by itself: 128 KiB, where nobody has changed it.
constexpr size_t request_bytes = size_t{128} << 10;
// Smaller parts of an expert, such as biases, share pages with those of others, which stay.
constexpr size_t least_bytes = size_t{16} << 10;
// Steps for which what the CPU has read is taken to stay.
constexpr uint64_t n_steps = 4;
// Matrices that may wait; what comes when there are more is left to whoever touches it.
constexpr size_t most_waiting = 4096;

int n_experts(const ggml_tensor * weight) { return ExpertWeight{weight, 0}.n_expert(); }

} // namespace

ReadAhead::ReadAhead() {
    try {
        for (int i = 0; i < n_threads; ++i) {
            threads_.emplace_back([this] { work(); });
        }
    } catch (...) {
        stop();
        throw;
    }
}

ReadAhead::~ReadAhead() { stop(); }

void ReadAhead::want(const Weights & weights, const std::vector<int32_t> & experts) {
    {
        const std::lock_guard lock(mutex_);
        ++clock_;
        add(wanted_, weights, not_of_late(weights, experts, true), MADV_WILLNEED);
    }
    more_.notify_all();
}

void ReadAhead::foresee(const Weights & weights, const std::vector<int32_t> & experts) {
    {
        const std::lock_guard lock(mutex_);
        add(foreseen_, weights, not_of_late(weights, experts, false), MADV_WILLNEED);
    }
    more_.notify_all();
}

void ReadAhead::let_go(const Weights & weights, int32_t expert) {
#ifdef MADV_COLD
    {
        const std::lock_guard lock(mutex_);
        Layer &               layer = layers_[weights.front()];
        layer.wanted.resize(static_cast<size_t>(n_experts(weights.front())), 0);
        layer.wanted[expert] = 0;
        add(foreseen_, weights, {expert}, MADV_COLD);
    }
    more_.notify_all();
#endif
}

void ReadAhead::stop() {
    std::vector<std::thread> threads;
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
        wanted_.clear();
        foreseen_.clear();
        threads.swap(threads_);
    }
    more_.notify_all();
    for (std::thread & thread : threads) {
        thread.join();
    }
}

// The experts that the CPU has not read of late; `wants`: it will read all of them now. Under the mutex.
std::vector<int32_t> ReadAhead::not_of_late(const Weights & weights, const std::vector<int32_t> & experts, bool wants) {
    Layer & layer = layers_[weights.front()];
    layer.wanted.resize(static_cast<size_t>(n_experts(weights.front())), 0);
    const uint64_t       of_late = n_steps * layers_.size();
    std::vector<int32_t> others;
    for (const int32_t e : experts) {
        if (layer.wanted[e] == 0 || layer.wanted[e] + of_late < clock_) {
            others.push_back(e);
        }
        layer.wanted[e] = wants ? clock_ : layer.wanted[e];
    }
    return others;
}

// Queues them matrix by matrix, as they will be read. Under the mutex.
void ReadAhead::add(std::deque<Range> & queue, const Weights & weights, const std::vector<int32_t> & experts,
                    int advice) {
    for (const ggml_tensor * weight : weights) {
        const size_t bytes = ggml_nbytes(weight) / static_cast<size_t>(n_experts(weight));
        const auto   data  = reinterpret_cast<uintptr_t>(weight->data);
        for (const int32_t e : experts) {
            if (bytes >= least_bytes && queue.size() < most_waiting && !stop_) {
                const uintptr_t begin = data + static_cast<size_t>(e) * bytes;
                queue.push_back({begin, begin + bytes, advice});
            }
        }
    }
}

void ReadAhead::work() {
    static const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    std::unique_lock  lock(mutex_);
    while (!stop_) {
        std::deque<Range> & queue = wanted_.empty() ? foreseen_ : wanted_;
        if (queue.empty()) {
            more_.wait(lock);
            continue;
        }
        const Range range = queue.front();
        queue.pop_front();
        lock.unlock();
        for (uintptr_t at = range.begin / page * page; at < range.end; at += request_bytes) {
            // refused for memory that is no file's: nothing to do there
            madvise(reinterpret_cast<void *>(at), std::min<size_t>(request_bytes, range.end - at), range.advice);
        }
        lock.lock();
    }
}

uint64_t bytes_from_disk() {
    std::ifstream file("/proc/self/io");
    std::string   name;
    uint64_t      value = 0;
    while (file >> name >> value) {
        if (name == "read_bytes:") {
            return value;
        }
    }
    return 0;
}

} // namespace spac
