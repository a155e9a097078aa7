// Uploads from pageable host memory through a pinned ring, which several threads fill.
//
// A driver copies from pageable memory through pinned memory of its own, with one thread. Where a link is faster than
// one thread's copies, several threads are faster. So both ways are measured on the user's machine.
#pragma once

#include "backend/device/ggml_internals.h"
#include "core/not_copied.h"
#include "core/parallel_copy.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace spac {

class PageableUploads {
  public:
    // Returns uploads with `n_threads` threads, the caller's included; null if the device has no pinned memory for the
    // ring, or no events. The ring's memory must outlive the work on the stream.
    static std::unique_ptr<PageableUploads> make(ggml_backend_t stream, int n_threads);

    int n_threads() const { return copies_.n_threads(); }
    // Queues the copy of `bytes` to a tensor, and returns when they have been read.
    void upload(ggml_tensor & to, const char * from, size_t offset, size_t bytes);

  private:
    PageableUploads(ggml_backend_t stream, int n_threads) : stream_(stream), copies_(n_threads) {}

    static constexpr size_t n_chunks = 4, chunk_bytes = size_t{4} << 20;

    struct Chunk {
        char *                 data = nullptr;
        ggml_backend_event_ptr read; // its last upload
        bool                   used = false;
    };

    ggml_backend_t              stream_;
    ggml_backend_buffer_ptr     ring_;
    std::array<Chunk, n_chunks> chunks_;
    size_t                      next_ = 0;
    ParallelCopy                copies_;
};

// Uploads an example of a layer's pageable bytes, by the driver (null) or by a ring, and returns when they are there.
using TrialUpload = std::function<void(PageableUploads *)>;

// Returns the way that uploads take, by the setting (set_upload_threads) or by a trial, which is made once for each
// device: null stands for the driver's own way.
std::unique_ptr<PageableUploads> best_uploads(ggml_backend_t stream, const TrialUpload & trial);

} // namespace spac
