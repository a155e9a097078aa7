#include "backend/prefill/pageable_uploads.h"

#include "backend/device/capabilities.h"
#include "backend/device/settings.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <mutex>
#include <string>
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

} // namespace spac
