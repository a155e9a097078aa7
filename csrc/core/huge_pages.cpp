#include "core/huge_pages.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spac {
namespace {

using Clock = std::chrono::steady_clock;

// The bytes that a thread takes at once. It notices a stop in between.
constexpr size_t piece_bytes     = 2 * huge_page_bytes;
constexpr auto   progress_period = std::chrono::milliseconds(50);
constexpr double least_known_s   = 0.25; // seconds of copying before its speed is known

size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Returns the processor time of this thread.
int64_t thread_ns() {
    timespec time = {};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// Returns how often the system has compacted memory while a process waited, or 0 if it does not tell.
int64_t compactions() {
    std::ifstream stat("/proc/vmstat");
    std::string   name;
    int64_t       value = 0;
    while (stat >> name >> value) {
        if (name == "compact_stall") {
            return value;
        }
    }
    return 0;
}

// Copies one file into a region with several threads.
class Filler {
  public:
    Filler(const Region & region, int fd, size_t bytes, const CopySettings & settings)
        : region_(region), fd_(fd), bytes_(bytes), settings_(settings) {}

    // Returns why the region is not filled, or an empty text if it is, or if progress stopped it.
    std::string run(const std::function<bool(size_t)> & progress) {
        std::vector<std::thread> threads;
        try {
            for (int i = 0; i < std::max(1, settings_.n_threads); ++i) {
                threads.emplace_back([this] { work(); });
                const std::lock_guard lock(mutex_);
                ++running_;
            }
        } catch (const std::system_error &) { // fewer threads can do it too
        }
        const bool none = threads.empty();
        watch(progress);
        for (std::thread & thread : threads) {
            thread.join();
        }
        return none ? "no thread could be started" : failure_;
    }
    bool stalled() const { return stalled_; }
    bool stopped() const { return stopped_; }

  private:
    // Waits for the threads, on the thread that may call `progress`.
    void watch(const std::function<bool(size_t)> & progress) {
        for (bool ended = false; !ended;) {
            if (progress && !stop_ && !progress(done_)) {
                stopped_ = true;
                stop_    = true;
            }
            std::unique_lock lock(mutex_);
            ended = ready_.wait_for(lock, progress_period, [&] { return ended_ == running_; });
        }
    }

    // Returns what the whole copy would take at the speed so far, as a text, if that is too long. Otherwise the text is
    // empty.
    std::string too_long() const {
        const double busy = static_cast<double>(busy_ns_) / 1e9 / std::max(1, settings_.n_threads);
        if (settings_.most_seconds <= 0 || busy < std::min(least_known_s, settings_.most_seconds)) {
            return "";
        }
        const double seconds = busy / static_cast<double>(done_) * static_cast<double>(bytes_);
        return seconds > settings_.most_seconds ? "the copy would take " + std::to_string(std::lround(seconds)) + " s"
                                                : "";
    }

    void work() {
        size_t  begin;
        int64_t busy_before = thread_ns();
        while (!stop_ && (begin = next_.fetch_add(piece_bytes)) < bytes_) {
            const size_t end = std::min(begin + piece_bytes, bytes_);
            std::string  why = copy(begin, end);
            if (why.empty()) {
                if (settings_.drop_cache) {
                    posix_fadvise(fd_, static_cast<off_t>(begin), static_cast<off_t>(end - begin), POSIX_FADV_DONTNEED);
                }
                done_ += end - begin;
                const int64_t busy = thread_ns();
                busy_ns_ += busy - std::exchange(busy_before, busy);
                why = too_long();
            }
            if (!why.empty()) {
                const std::lock_guard lock(mutex_);
                failure_ = why;
                stop_    = true;
            }
        }
        const std::lock_guard lock(mutex_);
        ++ended_;
        ready_.notify_one();
    }

    std::string copy(size_t begin, size_t end) {
        for (size_t at = begin; at < end; at += huge_page_bytes) {
            touch(at);
            if (std::string why = read(at, std::min(at + huge_page_bytes, end)); !why.empty()) {
                return why;
            }
        }
        return "";
    }

    std::string read(size_t at, size_t end) const {
        while (at < end) {
            const ssize_t n = pread(fd_, region_.data() + at, end - at, static_cast<off_t>(at));
            if (n < 0 && errno == EINTR) {
                continue;
            }
            if (n < 0) {
                return strerror(errno);
            }
            if (n == 0) {
                return "the file ends early";
            }
            at += static_cast<size_t>(n);
        }
        return "";
    }

    void touch(size_t at) {
        const auto begin                                   = Clock::now();
        *static_cast<volatile char *>(region_.data() + at) = 0;
        const int64_t beyond =
            std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count() - stalls_.page_ns;
        if (beyond > 0 && (stalled_ns_ += beyond) > stalls_.total_ns && !stalled_) {
            give_up_if_compacted();
        }
    }

    void give_up_if_compacted() {
        const std::lock_guard lock(mutex_);
        if (compactions() - compacted_before_ < stalls_.compactions) {
            stalled_ns_ = 0;
        } else if (!stalled_.exchange(true)) {
            madvise(region_.data(), region_.size(), MADV_NOHUGEPAGE); // huge pages that are there stay
        }
    }

    const Region &       region_;
    const int            fd_;
    const size_t         bytes_;
    const CopySettings & settings_;

    const StallBudget stalls_           = settings_.stalls;
    const int64_t     compacted_before_ = compactions();

    std::atomic<size_t>  next_{0}, done_{0};
    std::atomic<int64_t> stalled_ns_{0}, busy_ns_{0};
    std::atomic<bool>    stop_{false}, stopped_{false}, stalled_{false};

    std::mutex              mutex_; // guards what is below
    std::condition_variable ready_; // tells that a thread has ended
    int                     running_ = 0, ended_ = 0;
    std::string             failure_;
};

} // namespace

Region::Region(size_t bytes, bool huge) {
    const auto   page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t size = round_up(bytes, page);
    if (bytes == 0 || size < bytes || size + huge_page_bytes < size) {
        errno = ENOMEM;
        return;
    }
    void * const raw =
        mmap(nullptr, size + huge_page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return;
    }
    const auto   address = reinterpret_cast<uintptr_t>(raw);
    const size_t head    = round_up(address, huge_page_bytes) - address;
    const size_t tail    = huge_page_bytes - head;
    data_                = static_cast<char *>(raw) + head;
    size_                = size;
    if (head > 0) {
        munmap(raw, head);
    }
    if (tail > 0) {
        munmap(data_ + size_, tail);
    }
    madvise(data_, size_, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); // if this is refused, pages are small
}

Region::Region(Region && other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Region & Region::operator=(Region && other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
}

Region::~Region() {
    if (data_ != nullptr) {
        munmap(data_, size_);
    }
}

bool Region::interleave(const std::vector<int> & nodes) const {
    constexpr size_t           bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> mask;
    for (const int node : nodes) {
        const auto bit = static_cast<size_t>(std::max(0, node));
        mask.resize(std::max(mask.size(), bit / bits + 1));
        mask[bit / bits] |= 1UL << bit % bits;
    }
    // The kernel reads one bit less than it is given.
    return syscall(SYS_mbind, data_, size_, MPOL_INTERLEAVE, mask.data(), mask.size() * bits + 1, 0) == 0;
}

char * Region::release() {
    size_ = 0;
    return std::exchange(data_, nullptr);
}

size_t Region::huge_bytes() const {
    const auto    begin = reinterpret_cast<uintptr_t>(data_), end = begin + size_;
    std::ifstream maps("/proc/self/smaps");
    std::string   line;
    uintptr_t     from = 0, to = 0;
    size_t        bytes = 0, kib = 0;
    while (std::getline(maps, line)) {
        if (size_t first = 0, last = 0; sscanf(line.c_str(), "%zx-%zx ", &first, &last) == 2) {
            from = first;
            to   = last;
        }
        if (sscanf(line.c_str(), "AnonHugePages: %zu kB", &kib) == 1 && from < end && to > begin) {
            bytes += std::min(kib << 10, std::min(to, end) - std::max(from, begin));
        }
    }
    return bytes;
}

Region HugeCopies::copy(int fd, size_t bytes) {
    const auto begin = Clock::now();
    const auto fail  = [&](const std::string & why) {
        if (report_.failure.empty()) {
            report_.failure = why;
        }
        return Region();
    };
    Region region(bytes, true);
    if (region.data() == nullptr) {
        return fail(strerror(errno));
    }
    if (!settings_.nodes.empty()) {
        region.interleave(settings_.nodes); // otherwise pages lie where the threads run that copy
    }
    Filler            filler(region, fd, bytes, settings_);
    const size_t      before = report_.bytes;
    const std::string why = filler.run(progress_ ? [&](size_t done) { return progress_(before + done); } : Progress());
    report_.stalled |= filler.stalled();
    report_.stopped |= filler.stopped();
    if (filler.stopped()) {
        return {};
    }
    if (!why.empty()) {
        return fail(why);
    }
    // This also drops what was read ahead, or lies across the border of two pieces.
    if (settings_.drop_cache) {
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    report_.bytes += bytes;
    report_.huge_bytes += region.huge_bytes();
    mprotect(region.data(), region.size(), PROT_READ);
    report_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    return region;
}

} // namespace spac
