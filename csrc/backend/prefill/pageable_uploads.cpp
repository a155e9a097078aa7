#include "backend/prefill/pageable_uploads.h"

#include "backend/device/capabilities.h"
#include "backend/device/settings.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>

namespace spac {
namespace {

// Our way has to be this much faster than the driver's, and more threads than fewer, because they take cores.
constexpr double worth        = 0.9;
constexpr int    most_threads = 8, n_trials = 3;

// Returns the shortest time of a way in seconds.
double time_of(const TrialUpload & trial, PageableUploads * way) {
    double best = std::numeric_limits<double>::infinity();
    for (int i = 0; i < n_trials; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        trial(way);
        best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    return best;
}

// Returns the number of threads of the fastest way; 0 stands for the driver's. The log has their times.
int fastest(ggml_backend_t stream, const TrialUpload & trial) {
    trial(nullptr); // brings the pages to memory
    double    least  = time_of(trial, nullptr);
    int       best   = 0;
    auto      times  = "the driver takes " + std::to_string(1e3 * least) + " ms";
    const int n_cpus = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
    for (int n = 1; n <= std::min(n_cpus, most_threads); n *= 2) {
        const auto way = PageableUploads::make(stream, n);
        if (way == nullptr) {
            break;
        }
        const double seconds = time_of(trial, way.get());
        times += ", " + std::to_string(n) + " threads " + std::to_string(1e3 * seconds) + " ms";
        if (seconds < worth * least) {
            least = seconds;
            best  = n;
        }
    }
    GGML_LOG_INFO("spac: uploads from pageable memory: %s\n", times.c_str());
    return best;
}

// Returns the threads of the fastest way on the stream's device, which the first call measures.
int fastest_on_device(ggml_backend_t stream, const TrialUpload & trial) {
    static auto &         mutex = *new std::mutex;
    static auto &         known = *new std::map<ggml_backend_dev_t, int>;
    const std::lock_guard lock(mutex); // one trial at a time
    const auto            device = ggml_backend_get_device(stream);
    const auto            found  = known.find(device);
    return found != known.end() ? found->second : known[device] = fastest(stream, trial);
}

} // namespace

std::unique_ptr<PageableUploads> PageableUploads::make(ggml_backend_t stream, int n_threads) {
    ggml_backend_dev_t         device = ggml_backend_get_device(stream);
    ggml_backend_buffer_type_t pinned = ggml_backend_dev_host_buffer_type(device);
    if (pinned == nullptr) {
        return nullptr;
    }
    std::unique_ptr<PageableUploads> uploads(new PageableUploads(stream, n_threads));
    uploads->ring_.reset(ggml_backend_buft_alloc_buffer(pinned, n_chunks * chunk_bytes));
    if (!uploads->ring_ || ggml_backend_buffer_get_type(uploads->ring_.get()) != pinned) {
        return nullptr; // a driver that pins no more gives pageable memory
    }
    auto * data = static_cast<char *>(ggml_backend_buffer_get_base(uploads->ring_.get()));
    for (Chunk & chunk : uploads->chunks_) {
        chunk.data = data;
        data += chunk_bytes;
        chunk.read.reset(ggml_backend_event_new(device));
        if (!chunk.read) {
            return nullptr;
        }
    }
    return uploads;
}

void PageableUploads::upload(ggml_tensor & to, const char * from, size_t offset, size_t bytes) {
    while (bytes > 0) {
        Chunk & chunk = chunks_[next_++ % n_chunks];
        if (chunk.used) {
            await_event(stream_, chunk.read.get());
        }
        const size_t n = std::min(bytes, chunk_bytes);
        copies_.copy(chunk.data, from, n);
        ggml_backend_tensor_set_async(stream_, &to, chunk.data, offset, n);
        ggml_backend_event_record(chunk.read.get(), stream_);
        chunk.used = true;
        from += n;
        offset += n;
        bytes -= n;
    }
}

std::unique_ptr<PageableUploads> best_uploads(ggml_backend_t stream, const TrialUpload & trial) {
    const int chosen = upload_threads(), n = chosen < 0 ? fastest_on_device(stream, trial) : chosen;
    return n > 0 ? PageableUploads::make(stream, n) : nullptr;
}

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
