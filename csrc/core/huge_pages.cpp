#include "core/huge_pages.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <memory>
#include <mutex>
#include <system_error>

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace spac {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t huge_page       = size_t{2} << 20;
constexpr size_t piece           = 2 * huge_page; // a thread takes so many bytes at once
constexpr auto   progress_period = std::chrono::milliseconds(50);

struct Unmap {
    size_t bytes;
    void   operator()(char * data) const { munmap(data, bytes); }
};
using Memory = std::unique_ptr<char, Unmap>;

// Returns memory that begins at a multiple of 2 MB, on huge pages as far as the system has them. Returns null if the
// system refuses, with the reason in errno.
Memory allocate(size_t bytes) {
    void * const raw = mmap(nullptr, bytes + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (raw == MAP_FAILED) {
        return Memory(nullptr, Unmap{0});
    }
    const auto   address = reinterpret_cast<uintptr_t>(raw), page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const size_t head = (huge_page - address % huge_page) % huge_page, used = (head + bytes + page - 1) / page * page;
    char * const data = static_cast<char *>(raw) + head;
    if (head > 0) {
        munmap(raw, head);
    }
    if (bytes + huge_page > used) {
        munmap(static_cast<char *>(raw) + used, bytes + huge_page - used);
    }
    madvise(data, bytes, MADV_HUGEPAGE); // if this is refused, pages are small
    return Memory(data, Unmap{bytes});
}

// Places pages that nobody has touched yet in these NUMA nodes by turns, if the system allows it.
void interleave(const Memory & memory, const std::vector<int> & nodes) {
    constexpr size_t           bits = 8 * sizeof(unsigned long);
    std::vector<unsigned long> mask;
    for (const int node : nodes) {
        const auto bit = static_cast<size_t>(std::max(0, node));
        mask.resize(std::max(mask.size(), bit / bits + 1));
        mask[bit / bits] |= 1UL << bit % bits;
    }
    // The kernel reads one bit less than it is given.
    syscall(SYS_mbind, memory.get(), memory.get_deleter().bytes, MPOL_INTERLEAVE, mask.data(), mask.size() * bits + 1,
            0);
}

// Returns the bytes of a memory that are on huge pages now.
size_t huge_bytes(const Memory & memory) {
    const auto    begin = reinterpret_cast<uintptr_t>(memory.get()), end = begin + memory.get_deleter().bytes;
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

// Fills memory with the beginning of a file.
class Filler {
  public:
    Filler(const Memory & memory, int fd) : memory_(memory), fd_(fd) {}

    // Returns why the memory is not filled, or an empty text if it is, or if progress stopped it.
    std::string run(int n_threads, const HugeCopies::Progress & progress) {
        try {
            std::vector<std::future<void>> threads;
            for (int i = 0; i < n_threads; ++i) {
                threads.push_back(std::async(std::launch::async, [this] { work(); }));
            }
            for (const auto & thread : threads) {
                do {
                    stopped_ = stopped_ || (progress && !progress(done_));
                } while (thread.wait_for(progress_period) != std::future_status::ready);
            }
        } catch (const std::system_error &) {
            return "not enough threads could be started";
        }
        return failure_;
    }
    bool stopped() const { return stopped_; }

  private:
    void work() {
        const size_t bytes = memory_.get_deleter().bytes;
        for (size_t at = 0; !ends() && (at = next_.fetch_add(piece)) < bytes;) {
            for (const size_t end = std::min(at + piece, bytes); at < end && !ends();) {
                const ssize_t n = pread(fd_, memory_.get() + at, end - at, static_cast<off_t>(at));
                if (n > 0) {
                    at += static_cast<size_t>(n);
                    done_ += static_cast<size_t>(n);
                } else if (n == 0 || errno != EINTR) {
                    const std::lock_guard lock(mutex_);
                    failure_ = n == 0 ? "the file ends early" : strerror(errno);
                    failed_  = true;
                }
            }
        }
    }
    bool ends() const { return stopped_ || failed_; }

    const Memory &      memory_;
    const int           fd_;
    std::atomic<size_t> next_{0}, done_{0};
    std::atomic<bool>   stopped_{false}, failed_{false};
    std::mutex          mutex_; // guards failure_
    std::string         failure_;
};

} // namespace

void * HugeCopies::copy(int fd, size_t bytes) {
    const auto   begin  = Clock::now();
    Memory       memory = allocate(bytes);
    const size_t before = report_.bytes;
    std::string  why    = memory == nullptr ? strerror(errno) : "";
    if (memory != nullptr) {
        if (!nodes_.empty()) {
            interleave(memory, nodes_);
        }
        Filler filler(memory, fd);
        why = filler.run(n_threads_, progress_ ? [&](size_t done) { return progress_(before + done); } : Progress());
        report_.stopped = report_.stopped || filler.stopped();
    }
    if (report_.stopped || !why.empty()) {
        report_.failure = report_.failure.empty() ? why : report_.failure;
        return nullptr;
    }
    report_.bytes += bytes;
    report_.huge_bytes += huge_bytes(memory);
    report_.seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    mprotect(memory.get(), bytes, PROT_READ);
    return memory.release();
}

} // namespace spac
