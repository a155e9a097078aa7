#include "backend/pager.h"

#include "backend/slot_storage.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <tuple>

#include <fcntl.h>
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
// By the clock. After so long an expert is asked for again: the system may have needed its memory.
constexpr uint64_t long_ago = 4096;
// What was asked for since then is not dropped.
constexpr uint64_t of_late = 8;
// Experts dropped at a time.
constexpr size_t max_victims = 8;
// Matrices that may wait to be asked for because they were foreseen; the oldest are forgotten first.
constexpr size_t most_foreseen = 1024;

uintptr_t page_bytes() {
    static const auto bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    return bytes;
}

uintptr_t address(const char * data) { return reinterpret_cast<uintptr_t>(data); }

int n_experts(const ggml_tensor * weight) { return ExpertWeight{weight, 0}.n_expert(); }

size_t bytes_of_one(const ggml_tensor * weight) { return ggml_nbytes(weight) / static_cast<size_t>(n_experts(weight)); }

} // namespace

Pager::Pager(size_t budget) : budget_(budget) {
    for (int i = 0; i < n_threads; ++i) {
        threads_.emplace_back([this] { work(); });
    }
}

Pager::~Pager() {
    stop();
    for (const Mapping & mapping : mappings_) {
        close(mapping.fd);
    }
}

void Pager::add_mapping(const char * data, size_t size, int fd, int64_t offset) {
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own >= 0) { // else nothing of it is dropped here
        const std::lock_guard lock(mutex_);
        mappings_.push_back({{address(data), address(data) + size}, own, offset});
    }
}

void Pager::add_store(const char * data, size_t size) {
    const std::lock_guard lock(mutex_);
    stores_.push_back({address(data), address(data) + size});
}

void Pager::stop() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    more_.notify_all();
    for (std::thread & thread : threads_) {
        if (thread.joinable()) {
            thread.join();
        }
    }
}

void Pager::want(int layer, const Weights & weights, const std::vector<int32_t> & experts, bool counts) {
    {
        const std::lock_guard lock(mutex_);
        ask(wanted_, layer, weights, experts);
        for (size_t i = 0; counts && layer >= 0 && i < experts.size(); ++i) {
            layers_[layer].experts[experts[i]].used = clock_;
        }
    }
    more_.notify_all();
}

void Pager::foresee(int layer, const Weights & weights, const std::vector<int32_t> & experts) {
    {
        const std::lock_guard lock(mutex_);
        ask(foreseen_, layer, weights, experts);
        while (foreseen_.size() > most_foreseen) {
            foreseen_.pop_front();
        }
    }
    more_.notify_all();
}

void Pager::let_go(int layer, int expert) {
    const std::lock_guard lock(mutex_);
    if (static_cast<size_t>(layer) < layers_.size() && !layers_[layer].experts.empty()) {
        layers_[layer].experts[expert].used = 0;
    }
}

size_t Pager::held() const {
    const std::lock_guard lock(mutex_);
    return held_;
}

// Queues what is not there, matrix by matrix, as it will be read. Under the mutex.
void Pager::ask(std::deque<Range> & queue, int layer, const Weights & weights, const std::vector<int32_t> & experts) {
    ++clock_;
    std::vector<int32_t> missing = experts;
    if (layer >= 0) {
        Layer & l = known(layer, weights);
        missing.clear();
        for (const int32_t e : experts) {
            Expert & expert = l.experts[e];
            if (!expert.held || expert.asked + long_ago < clock_) {
                missing.push_back(e);
            }
            held_ += expert.held ? 0 : l.expert_bytes;
            expert = {true, clock_, expert.used};
        }
    }
    for (const ggml_tensor * weight : weights) {
        const size_t bytes = bytes_of_one(weight);
        for (const int32_t e : missing) {
            if (bytes >= least_bytes) {
                const uintptr_t begin =
                    address(static_cast<const char *>(weight->data)) + static_cast<size_t>(e) * bytes;
                queue.push_back({begin, begin + bytes});
            }
        }
    }
}

Pager::Layer & Pager::known(int layer, const Weights & weights) {
    if (static_cast<size_t>(layer) >= layers_.size()) {
        layers_.resize(static_cast<size_t>(layer) + 1);
    }
    Layer & l = layers_[layer];
    if (l.weights.empty()) {
        l.weights = weights;
        l.experts.assign(static_cast<size_t>(n_experts(weights.front())), {});
        for (const ggml_tensor * weight : weights) {
            l.expert_bytes += bytes_of_one(weight) >= least_bytes ? bytes_of_one(weight) : 0;
        }
    }
    return l;
}

// The memory of experts that are to go, so that the others fit; they count as gone. Under the mutex.
std::vector<Pager::Range> Pager::choose_victims() {
    std::vector<Range> ranges;
    if (held_ <= budget_) {
        return ranges;
    }
    std::vector<Held> held;
    for (size_t il = 0; il < layers_.size(); ++il) {
        for (size_t e = 0; e < layers_[il].experts.size(); ++e) {
            const Expert & expert = layers_[il].experts[e];
            if (expert.held && expert.asked + of_late < clock_) {
                held.push_back({expert.used, expert.asked, static_cast<int>(il), static_cast<int>(e)});
            }
        }
    }
    const size_t n = std::min(held.size(), max_victims);
    std::partial_sort(
        held.begin(), held.begin() + static_cast<std::ptrdiff_t>(n), held.end(),
        [](const Held & a, const Held & b) { return std::tie(a.used, a.asked) < std::tie(b.used, b.asked); });
    for (size_t k = 0; k < n && held_ > budget_; ++k) {
        Layer & l                      = layers_[held[k].layer];
        l.experts[held[k].expert].held = false;
        held_ -= l.expert_bytes;
        for (const ggml_tensor * weight : l.weights) {
            const size_t    bytes = bytes_of_one(weight);
            const uintptr_t begin =
                address(static_cast<const char *>(weight->data)) + static_cast<size_t>(held[k].expert) * bytes;
            if (bytes >= least_bytes) {
                ranges.push_back({begin, begin + bytes});
            }
        }
    }
    return ranges;
}

// Whole pages of a range, where they are a store's and a file's: of other memory, the contents would be lost.
void Pager::drop(const Range & range) const {
    const uintptr_t page  = page_bytes();
    const uintptr_t begin = (range.begin + page - 1) / page * page, end = range.end / page * page;
    const auto      around = [&](const Range & r) { return r.begin <= range.begin && range.end <= r.end; };
    const auto      mapping =
        std::find_if(mappings_.begin(), mappings_.end(), [&](const Mapping & m) { return around(m.at); });
    if (begin >= end || mapping == mappings_.end() || std::none_of(stores_.begin(), stores_.end(), around)) {
        return;
    }
    if (madvise(reinterpret_cast<void *>(begin), end - begin, MADV_DONTNEED) == 0) {
        const auto offset = mapping->offset + static_cast<int64_t>(begin - mapping->at.begin);
        posix_fadvise(mapping->fd, offset, static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
    }
}

void Pager::work() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
        const std::vector<Range> victims = choose_victims();
        std::deque<Range> &      queue   = wanted_.empty() ? foreseen_ : wanted_;
        if (queue.empty() && victims.empty()) {
            more_.wait(lock);
            continue;
        }
        Range range = {0, 0};
        if (!queue.empty()) {
            range = queue.front();
            queue.pop_front();
        }
        lock.unlock();
        for (uintptr_t at = range.begin / page_bytes() * page_bytes(); at < range.end; at += request_bytes) {
            // refused for memory that is no file's: nothing to do there
            madvise(reinterpret_cast<void *>(at), std::min(request_bytes, range.end - at), MADV_WILLNEED);
        }
        for (const Range & victim : victims) {
            drop(victim);
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
