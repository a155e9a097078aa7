#include "backend/device/kernel_memory.h"

#include "backend/device/ggml_internals.h"
#include "core/error.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>

namespace spac {
namespace {

// Kernels ask for this much where the driver does not tell: the largest workspace of cuBLAS, twice.
constexpr size_t unknown_bytes = size_t{64} << 20;

struct Kernels {
    ptrdiff_t taken  = 0; // bytes
    size_t    lacked = 0; // bytes
};

std::mutex books_mutex;

// Never destroyed, because pools are freed after main().
std::map<ggml_backend_dev_t, Kernels> & books() {
    static auto * one = new std::map<ggml_backend_dev_t, Kernels>;
    return *one;
}

} // namespace

void count_kernel_memory(ggml_backend_dev_t device, ptrdiff_t bytes) {
    const std::lock_guard lock(books_mutex);
    books()[device].taken += bytes;
}

size_t kernel_memory(ggml_backend_dev_t device) {
    const std::lock_guard lock(books_mutex);
    const auto            found = books().find(device);
    return found == books().end() ? 0 : static_cast<size_t>(std::max<ptrdiff_t>(0, found->second.taken));
}

void refuse_kernels(ggml_backend_dev_t device, size_t bytes) {
    {
        const std::lock_guard lock(books_mutex);
        size_t &              lacked = books()[device].lacked;
        lacked                       = std::max(lacked, bytes > 0 ? bytes : unknown_bytes);
    }
    const std::string more = bytes > 0 ? " need " + std::to_string((bytes + (1 << 20) - 1) >> 20) + " MiB more" : "";
    throw MemoryError(std::string("the memory of ") + ggml_backend_dev_name(device) + " is full" +
                      (more.empty() ? "" : ": its kernels" + more));
}

size_t take_kernel_refusal(ggml_backend_dev_t device) {
    const std::lock_guard lock(books_mutex);
    const auto            found = books().find(device);
    return found == books().end() ? 0 : std::exchange(found->second.lacked, 0);
}

#if !defined(SPAC_WITH_CUDA)
void unwind_if_full() {}
#endif

} // namespace spac
