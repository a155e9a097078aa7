#include "core/read_rates.h"

#include "core/error.h"
#include "core/huge_pages.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>

namespace spac {
namespace {

constexpr int    n_turns            = 9;
constexpr size_t samples_per_thread = 4;

// Adds up what is there. The sum keeps the compiler from leaving the reads out.
uint64_t sum(const char * bytes, size_t n) {
    const auto * data      = reinterpret_cast<const uint64_t *>(bytes);
    uint64_t     parts[16] = {};
    for (size_t i = 0; i + 16 <= n / sizeof(uint64_t); i += 16) {
        for (size_t k = 0; k < 16; ++k) {
            parts[k] += data[i + k];
        }
    }
    uint64_t total = 0;
    for (const uint64_t part : parts) {
        total += part;
    }
    return total;
}

// Calls `call` with 0 to n - 1, each on a thread of its own. Returns the seconds that all took together.
double in_parallel(size_t n, const std::function<void(size_t)> & call) {
    const auto               begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (size_t i = 1; i < n; ++i) {
        try {
            threads.emplace_back(call, i);
        } catch (const std::system_error &) { // there are no more threads, so this one does it
            call(i);
        }
    }
    call(0);
    for (std::thread & thread : threads) {
        thread.join();
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

// Parts of a file, mapped as llama.cpp maps the whole file.
class Samples {
  public:
    Samples(int fd, size_t file_bytes, size_t n, size_t bytes) : bytes_(bytes) {
        for (size_t i = 0; i < n; ++i) {
            const size_t at   = n > 1 ? (file_bytes - bytes) / (n - 1) * i / huge_page_bytes * huge_page_bytes : 0;
            void * const data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(at));
            if (data == MAP_FAILED) {
                const int error = errno;
                unmap();
                throw InputError(std::string("the file cannot be mapped: ") + strerror(error));
            }
            samples_.push_back(static_cast<char *>(data));
        }
    }
    Samples(const Samples &)             = delete;
    Samples & operator=(const Samples &) = delete;
    ~Samples() { unmap(); }

    const char * operator[](size_t i) const { return samples_[i]; }

  private:
    void unmap() {
        for (char * const data : samples_) {
            munmap(data, bytes_);
        }
    }
    const size_t        bytes_;
    std::vector<char *> samples_;
};

} // namespace

ReadRates measure_read_rates(int fd, size_t bytes, int n_threads) {
    struct stat file = {};
    if (fstat(fd, &file) != 0) {
        throw InputError(std::string("no file: ") + strerror(errno));
    }
    const auto   file_bytes = static_cast<size_t>(file.st_size);
    const size_t threads    = static_cast<size_t>(std::max(1, n_threads));
    const size_t n          = threads * samples_per_thread;
    const size_t each       = std::min(bytes, file_bytes) / n / huge_page_bytes * huge_page_bytes;
    if (each == 0) {
        throw InputError("the file is too small to measure how fast it is read");
    }
    const Samples samples(fd, file_bytes, n, each);
    const Region  copy(n * each, true);
    if (copy.data() == nullptr) {
        throw MemoryError("no memory to measure how fast it is read");
    }
    std::atomic<uint64_t> sink{0};
    const auto            of_thread = [&](size_t thread, const std::function<void(size_t)> & call) {
        for (size_t i = 0; i < samples_per_thread; ++i) {
            call(thread * samples_per_thread + i);
        }
    };
    const auto rate = [&](const std::function<void(size_t)> & call) {
        const double seconds = in_parallel(threads, [&](size_t thread) { of_thread(thread, call); });
        return static_cast<double>(n * each) / seconds / 1e9;
    };
    ReadRates found = {};
    found.copy_gb_s = rate([&](size_t i) { memcpy(copy.data() + i * each, samples[i], each); });
    std::vector<double> mapped, huge, gain;
    for (int turn = 0; turn < n_turns; ++turn) {
        mapped.push_back(rate([&](size_t i) { sink += sum(samples[i], each); }));
        huge.push_back(rate([&](size_t i) { sink += sum(copy.data() + i * each, each); }));
        gain.push_back(huge.back() / mapped.back());
    }
    found.mapped_gb_s = median(mapped);
    found.huge_gb_s   = median(huge);
    found.gain        = median(gain);
    found.bytes       = n * each;
    found.huge_bytes  = copy.huge_bytes();
    return found;
}

} // namespace spac
