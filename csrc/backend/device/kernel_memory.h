// The memory that a device's kernels take while they compute, from pools of the driver's library.
#pragma once

#include "core/not_copied.h"

#include <cstddef>
#include <utility>

struct ggml_backend;
struct ggml_backend_device;

namespace spac {

// While it lives, this thread has a device compute. ggml-cuda ends the process where its kernels get no memory. In this
// scope MemoryError is thrown instead, unless a graph is being captured: ggml cannot leave a capture.
class Computing : NotCopied {
  public:
    explicit Computing(ggml_backend * stream) : outer_(std::exchange(stream_, stream)) {}
    ~Computing() { stream_ = outer_; }

    // Returns the stream on which this thread computes, or null.
    static ggml_backend * stream() { return stream_; }

  private:
    static inline thread_local ggml_backend * stream_ = nullptr;

    ggml_backend * const outer_;
};

// Counts bytes that the pools of a device's kernels take, or give back (negative). kernel_memory() returns their sum.
void   count_kernel_memory(ggml_backend_device * device, ptrdiff_t bytes);
size_t kernel_memory(ggml_backend_device * device);

// Notes that kernels of a device got no memory, and throws MemoryError. With 0 bytes, it is not known how much they
// asked for.
[[noreturn]] void refuse_kernels(ggml_backend_device * device, size_t bytes);
// Returns the bytes that kernels of a device asked for in vain since the last call, as far as known; 0 for none.
size_t take_kernel_refusal(ggml_backend_device * device);

// Throws MemoryError if this thread computes on a CUDA device that has no memory left. It is called where ggml is about
// to end the process.
void unwind_if_full();

} // namespace spac
