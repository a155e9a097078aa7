// Registration and launches of kernels.
#include "kernels.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <atomic>
#include <deque>
#include <mutex>
#include <unordered_map>

using namespace pretend;

namespace {

struct Entry {
    const char *     mangled = nullptr;
    const void *     fatbin  = nullptr;
    std::once_flag   once;
    std::atomic<int> loaded{0}; // a bit for each card
    Kernel           kernel;    // described at the first request, because there are thousands
};

// By the host's function. Entries keep their addresses.
auto & entries       = *new std::unordered_map<const void *, Entry>;
auto & entries_mutex = *new std::mutex;

Entry * entry_of(const void * function) {
    const std::lock_guard lock(entries_mutex);
    const auto            found = entries.find(function);
    return found != entries.end() ? &found->second : nullptr;
}

Kernel & kernel_of(Entry & entry) {
    std::call_once(entry.once, [&] { entry.kernel = describe(entry.mangled); });
    return entry.kernel;
}

struct Configuration {
    dim3         grid, block;
    size_t       shared;
    cudaStream_t stream;
};
thread_local std::deque<Configuration> configurations;

bool valid(const Kernel & kernel, dim3 grid, dim3 block, size_t shared, size_t card) {
    const size_t threads = size_t{block.x} * block.y * block.z;
    if (threads == 0 || threads > 1024 || size_t{grid.x} * grid.y * grid.z == 0 || grid.y > 65535 || grid.z > 65535 ||
        grid.x > 2147483647U) {
        misuse("%s: launched with a grid of %u x %u x %u blocks of %u x %u x %u threads", kernel.name.c_str(), grid.x,
               grid.y, grid.z, block.x, block.y, block.z);
        return false;
    }
    if (shared > kernel.shared_limit.at(card)) {
        misuse("%s: launched with %zu bytes of shared memory, %zu are allowed", kernel.name.c_str(), shared,
               kernel.shared_limit.at(card));
        return false;
    }
    return true;
}

// Checks that the kernel's pointers point to memory that its card can reach.
std::vector<RangePtr> touched(const Kernel & kernel, void ** arguments, int card) {
    std::vector<RangePtr> ranges;
    for (const int i : kernel.pointers) {
        const auto * p = *static_cast<const void * const *>(arguments[i]);
        if (p == nullptr) {
            continue;
        }
        if (RangePtr range = find(p)) {
            if (range->where == Range::Where::device && range->card != card) {
                misuse("%s: its parameter %d points to memory of card %d, and it runs on card %d", kernel.name.c_str(),
                       i, range->card, card);
            }
            if (ranges.empty() || ranges.back() != range) {
                ranges.push_back(std::move(range));
            }
        } else {
            misuse("%s: its parameter %d points to memory that no card can reach", kernel.name.c_str(), i);
        }
    }
    return ranges;
}

cudaError_t launch(Entry * entry, dim3 grid, dim3 block, void ** arguments, size_t shared, cudaStream_t handle) {
    const StreamPtr stream = stream_of(handle);
    if (entry == nullptr || stream == nullptr) {
        misuse("a launch of a kernel that is not registered, or on no stream");
        return fail(cudaErrorInvalidDeviceFunction);
    }
    const Kernel & kernel = kernel_of(*entry);
    const int      card   = stream->card;
    if (card != current_card()) {
        misuse("%s: launched on a stream of card %d, and card %d is the current one", kernel.name.c_str(), card,
               current_card());
        return fail(cudaErrorInvalidResourceHandle);
    }
    wait_implicitly((entry->loaded.fetch_or(1 << card) >> card & 1) == 0);
    count(Kind::kernel, stream->number);
    ++*kernel.launches;
    if (!valid(kernel, grid, block, shared, static_cast<size_t>(card))) {
        return fail(cudaErrorInvalidConfiguration);
    }
    auto run = settings().execute.empty() ? work_of(kernel, arguments, grid)
                                          : execution(entry->fatbin, kernel.mangled, arguments, grid, block, shared);
    stream->push({Kind::kernel, std::move(run), nullptr, touched(kernel, arguments, card),
                  static_cast<int64_t>(settings().kernel_us * 1000), entry});
    return cudaSuccess;
}

} // namespace

// Returns a handle that points to the argument.
PRETEND_API void ** __cudaRegisterFatBinary(void * fatbin) { return new void *(fatbin); }

PRETEND_API void __cudaRegisterFatBinaryEnd(void **) {}

PRETEND_API void __cudaUnregisterFatBinary(void **) {}

PRETEND_API void __cudaRegisterVar(void **, char *, char *, const char *, int, size_t, int, int) {}

PRETEND_API void __cudaRegisterFunction(void ** fatbin, const char * host, char *, const char * name, int, uint3 *,
                                        uint3 *, dim3 *, dim3 *, int *) {
    const std::lock_guard lock(entries_mutex);
    entries[host].mangled = name;
    entries[host].fatbin  = *fatbin;
}

PRETEND_API unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
    configurations.push_back({grid, block, shared, stream});
    return 0;
}

PRETEND_API cudaError_t __cudaPopCallConfiguration(dim3 * grid, dim3 * block, size_t * shared, void * stream) {
    const Configuration & last           = configurations.back();
    *grid                                = last.grid;
    *block                               = last.block;
    *shared                              = last.shared;
    *static_cast<cudaStream_t *>(stream) = last.stream;
    configurations.pop_back();
    return cudaSuccess;
}

PRETEND_API cudaError_t __cudaGetKernel(cudaKernel_t * kernel, const void * function) {
    *kernel = reinterpret_cast<cudaKernel_t>(entry_of(function));
    return *kernel != nullptr ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

PRETEND_API cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void ** arguments, size_t shared,
                                           cudaStream_t stream) {
    return launch(reinterpret_cast<Entry *>(kernel), grid, block, arguments, shared, stream);
}

PRETEND_API cudaError_t cudaLaunchKernel(const void * function, dim3 grid, dim3 block, void ** arguments, size_t shared,
                                         cudaStream_t stream) {
    return launch(entry_of(function), grid, block, arguments, shared, stream);
}

PRETEND_API cudaError_t cudaLaunchCooperativeKernel(const void * function, dim3 grid, dim3 block, void ** arguments,
                                                    size_t shared, cudaStream_t stream) {
    return cudaLaunchKernel(function, grid, block, arguments, shared, stream);
}

PRETEND_API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t * config, const void * function,
                                            void ** arguments) {
    return launch(entry_of(function), config->gridDim, config->blockDim, arguments, config->dynamicSmemBytes,
                  config->stream);
}

PRETEND_API cudaError_t cudaFuncSetAttribute(const void * function, cudaFuncAttribute attribute, int value) {
    Entry * entry = entry_of(function);
    if (entry == nullptr) {
        return fail(cudaErrorInvalidDeviceFunction);
    }
    if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value > 227 << 10) {
            misuse("%s: %d bytes of shared memory are asked for", kernel_of(*entry).name.c_str(), value);
            return fail(cudaErrorInvalidValue);
        }
        kernel_of(*entry).shared_limit.at(static_cast<size_t>(current_card())) = static_cast<size_t>(value);
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaFuncGetAttributes(cudaFuncAttributes * attributes, const void *) {
    *attributes                           = {};
    attributes->maxThreadsPerBlock        = 1024;
    attributes->numRegs                   = 64;
    attributes->ptxVersion                = settings().cc;
    attributes->binaryVersion             = settings().cc;
    attributes->maxDynamicSharedSizeBytes = 227 << 10;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int * n, const void *, int threads,
                                                                               size_t shared, unsigned int) {
    const int by_threads = threads > 0 ? 1024 / threads : 1; // with 64 registers a thread
    const int by_shared  = shared > 0 ? static_cast<int>((size_t{227} << 10) / shared) : 32;
    *n                   = std::max(1, std::min(by_threads, by_shared));
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int * n, const void * function, int threads,
                                                                      size_t shared) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(n, function, threads, shared, 0);
}
