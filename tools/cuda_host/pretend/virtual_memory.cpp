// The driver's virtual memory: addresses are reserved, and get memory in pieces.
#include "counts.h"
#include "memory.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <cstdint>
#include <map>
#include <mutex>

#include <cuda.h>

using namespace pretend;

namespace {

constexpr size_t granularity = size_t{2} << 20;

// Memory that was taken, and has no address yet.
struct Taken {
    int    card;
    size_t bytes;
};

struct Handles {
    std::mutex                mutex;
    std::map<uint64_t, Taken> known; // also those that are released, because what they are mapped to stays
    uint64_t                  last = 0;
};

Handles & handles() {
    static auto * one = new Handles;
    return *one;
}

} // namespace

PRETEND_API CUresult cuMemGetAllocationGranularity(size_t * bytes, const CUmemAllocationProp *,
                                                   CUmemAllocationGranularity_flags) {
    *bytes = granularity;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuMemCreate(CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp * of,
                                 unsigned long long) {
    wait_implicitly(true);
    count(Kind::device_alloc, legacy_stream, bytes);
    if (bytes % granularity != 0) {
        misuse("memory of %zu bytes is asked for: no multiple of the granularity", bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_take(of->location.id, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    Handles &             all = handles();
    const std::lock_guard lock(all.mutex);
    *handle             = ++all.last;
    all.known[all.last] = {of->location.id, bytes};
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuMemGetInfo_v2(size_t * free, size_t * total) {
    return cudaMemGetInfo(free, total) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

PRETEND_API CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuMemAddressReserve(CUdeviceptr * address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    *address = reinterpret_cast<CUdeviceptr>(device_reserve(bytes));
    return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

PRETEND_API CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long) {
    Handles &             all = handles();
    const std::lock_guard lock(all.mutex);
    const auto            found = all.known.find(handle);
    if (found == all.known.end() || offset != 0 || found->second.bytes != bytes) {
        misuse("memory is mapped that was not created so");
        return CUDA_ERROR_INVALID_VALUE;
    }
    auto * const base = reinterpret_cast<char *>(address);
    return device_map(found->second.card, base, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

PRETEND_API CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc *, size_t) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    auto * const   base  = reinterpret_cast<char *>(address);
    const RangePtr known = find(base);
    if (known == nullptr || known->base != base || known->size != bytes) {
        misuse("memory is unmapped otherwise than it was mapped");
        return CUDA_ERROR_INVALID_VALUE;
    }
    return cudaFree(base) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
