// The driver: stream memory operations, virtual memory, and queries. Programs find these functions in libcuda.so.1,
// which is this library's name.
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <map>
#include <mutex>

#include <cuda.h>

using namespace pretend;

namespace {

bool reached(uint32_t now, uint32_t value, unsigned flags) {
    switch (flags & 3U) {
    case CU_STREAM_WAIT_VALUE_GEQ:
        return static_cast<int32_t>(now - value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ:
        return now == value;
    case CU_STREAM_WAIT_VALUE_AND:
        return (now & value) != 0;
    default:
        return ~(now | value) != 0;
    }
}

// Queues an operation on a word that streams and the host share.
CUresult push_operation(CUstream handle, CUdeviceptr address, Kind kind, uint32_t value, unsigned flags) {
    const StreamPtr stream = stream_of(handle);
    void * const    p      = reinterpret_cast<void *>(address);
    const RangePtr  range  = find(p);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (range == nullptr || !range->holds(p, sizeof(uint32_t)) || address % sizeof(uint32_t) != 0) {
        misuse("a stream's memory operation at an address that no card can reach");
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!settings().mem_ops) {
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (stream->card != current_card()) {
        misuse("a stream's memory operation while the context of card %d is current, not card %d's", current_card(),
               stream->card);
    }
    count(kind, stream->number);
    auto * const word  = reinterpret_cast<uint32_t *>(range->at(p));
    const auto   ready = [=] { return reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags); };
    const auto   run   = [=] { __atomic_store_n(word, value, __ATOMIC_RELEASE); };
    stream->push(kind == Kind::wait_value ? Operation{kind, nullptr, ready, {range}}
                                          : Operation{kind, run, nullptr, {range}});
    return CUDA_SUCCESS;
}

} // namespace

PRETEND_API CUresult(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    return push_operation(stream, at, Kind::write_value, value, flags);
}

PRETEND_API CUresult(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    return push_operation(stream, at, Kind::wait_value, value, flags);
}

// A card has one context, whose handle is the card's number plus one.
PRETEND_API CUresult cuCtxGetCurrent(CUcontext * context) {
    *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(current_card() + 1));
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuCtxSetCurrent(CUcontext context) {
    set_current_card(static_cast<int>(reinterpret_cast<intptr_t>(context)) - 1);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuStreamGetCtx(CUstream handle, CUcontext * context) {
    const StreamPtr stream = stream_of(handle);
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *context = reinterpret_cast<CUcontext>(static_cast<intptr_t>(stream->card + 1));
    return CUDA_SUCCESS;
}

PRETEND_API CUresult(cuStreamIsCapturing)(CUstream handle, CUstreamCaptureStatus * status) {
    const StreamPtr stream = stream_of(handle);
    const bool      yes    = stream != nullptr && stream->capture != nullptr;
    *status                = yes ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuStreamQuery(CUstream handle) {
    const StreamPtr stream = stream_of(handle);
    if (settings().full_query) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (stream != nullptr && stream->capture != nullptr) {
        misuse("a stream under capture is asked how far it has come");
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : stream->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

PRETEND_API CUresult cuEventQuery(CUevent event) {
    if (!settings().event_query) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    const cudaError_t error = cudaEventQuery(event);
    return error == cudaSuccess         ? CUDA_SUCCESS
           : error == cudaErrorNotReady ? CUDA_ERROR_NOT_READY
                                        : CUDA_ERROR_INVALID_HANDLE;
}

PRETEND_API CUresult cuGetErrorName(CUresult, const char ** text) {
    *text = "pretend CUDA driver error";
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuGetErrorString(CUresult error, const char ** text) { return cuGetErrorName(error, text); }

PRETEND_API CUresult cuInit(unsigned int) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuDeviceGet(CUdevice * device, int ordinal) {
    *device = ordinal;
    return is_card(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

PRETEND_API CUresult cuDriverGetVersion(int * version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuDeviceGetAttribute(int * value, CUdevice_attribute attribute, CUdevice) {
    static const std::map<CUdevice_attribute, int> values = {
        {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1, settings().mem_ops},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, settings().mem_ops},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, settings().mem_ops},
        {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, settings().read_only},
        {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, settings().vmm},
    };
    const auto found = values.find(attribute);
    *value           = found != values.end() ? found->second : 0;
    return CUDA_SUCCESS;
}

// ---- virtual memory: addresses are reserved, and get memory in pieces

namespace {

constexpr size_t granularity = size_t{2} << 20;

// Memory that was created, also what was released, because what it is mapped to stays.
struct Created {
    struct Piece {
        int    card;
        size_t bytes;
    };

    std::mutex                mutex;
    std::map<uint64_t, Piece> pieces; // by handle
};
auto & created = *new Created;

} // namespace

PRETEND_API CUresult cuMemGetInfo_v2(size_t * free, size_t * total) {
    return cudaMemGetInfo(free, total) == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

PRETEND_API CUresult cuMemGetAllocationGranularity(size_t * bytes, const CUmemAllocationProp *,
                                                   CUmemAllocationGranularity_flags) {
    *bytes = granularity;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuMemCreate(CUmemGenericAllocationHandle * handle, size_t bytes, const CUmemAllocationProp * of,
                                 unsigned long long) {
    wait_implicitly(true);
    count(Kind::device_alloc);
    if (bytes % granularity != 0) {
        misuse("memory of %zu bytes is asked for: no multiple of the granularity", bytes);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (!device_take(of->location.id, bytes)) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    const std::lock_guard lock(created.mutex);
    *handle                 = created.pieces.size() + 1;
    created.pieces[*handle] = {of->location.id, bytes};
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuMemRelease(CUmemGenericAllocationHandle) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuMemAddressReserve(CUdeviceptr * address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    *address = reinterpret_cast<CUdeviceptr>(device_reserve(bytes));
    return *address != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

PRETEND_API CUresult cuMemAddressFree(CUdeviceptr, size_t) { return CUDA_SUCCESS; }

PRETEND_API CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                              unsigned long long) {
    const std::lock_guard lock(created.mutex);
    const auto            found = created.pieces.find(handle);
    if (found == created.pieces.end() || offset != 0 || found->second.bytes != bytes) {
        misuse("memory is mapped that was not created so");
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool mapped = device_map(found->second.card, reinterpret_cast<char *>(address), bytes);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
