// The driver: stream memory operations, and queries about them. Programs ask the runtime for these functions by name,
// or find them in libcuda.so.1, which is this library's name. virtual_memory.cpp has the calls for virtual memory.
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <array>
#include <cstring>
#include <utility>

#include <cuda.h>

using namespace pretend;

namespace {

// A word that streams and the host share.
CUresult word_at(CUdeviceptr address, RangePtr & range, uint32_t *& word) {
    void * p = reinterpret_cast<void *>(address);
    range    = find(p);
    if (range == nullptr || !range->holds(p, sizeof(uint32_t)) || address % sizeof(uint32_t) != 0) {
        misuse("a stream's memory operation at an address that no card can reach");
        return CUDA_ERROR_INVALID_VALUE;
    }
    word = reinterpret_cast<uint32_t *>(range->at(p));
    return settings().mem_ops ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

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

CUresult push_operation(CUstream handle, CUdeviceptr address, uint32_t value, unsigned flags, bool waits) {
    const StreamPtr stream = stream_of(reinterpret_cast<cudaStream_t>(handle));
    Operation       op;
    uint32_t *      word = nullptr;
    RangePtr        range;
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (const CUresult result = word_at(address, range, word); result != CUDA_SUCCESS) {
        return result;
    }
    if (stream->card != current_card()) {
        misuse("a stream's memory operation while the context of card %d is current, not card %d's", current_card(),
               stream->card);
    }
    count(waits ? Kind::wait_value : Kind::write_value, stream->number, sizeof(uint32_t));
    op.kind    = waits ? Kind::wait_value : Kind::write_value;
    op.touches = {range};
    if (waits) {
        op.ready = [word, value, flags] { return reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), value, flags); };
    } else {
        op.run = [word, value] { __atomic_store_n(word, value, __ATOMIC_RELEASE); };
    }
    stream->push(std::move(op));
    return CUDA_SUCCESS;
}

CUresult write_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    return push_operation(stream, address, value, flags, false);
}

CUresult wait_value(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags) {
    return push_operation(stream, address, value, flags, true);
}

CUresult device_attribute(int * value, CUdevice_attribute attribute, CUdevice) {
    switch (static_cast<int>(attribute)) {
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR:
        *value = settings().mem_ops;
        break;
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED:
        *value = settings().read_only;
        break;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        *value = settings().vmm;
        break;
    default:
        *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult device_get(CUdevice * device, int ordinal) {
    *device = ordinal;
    return is_card(ordinal) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult init(unsigned) { return CUDA_SUCCESS; }

CUresult error_name(CUresult, const char ** text) {
    *text = "pretend CUDA driver error";
    return CUDA_SUCCESS;
}

template <typename F> void * address(F * function) { return reinterpret_cast<void *>(function); }

CUresult query(CUstream handle) {
    const StreamPtr stream = stream_of(reinterpret_cast<cudaStream_t>(handle));
    if (stream != nullptr && stream->capture != nullptr) {
        misuse("a stream under capture is asked how far it has come");
        stream->capture->invalid = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return stream == nullptr ? CUDA_ERROR_INVALID_HANDLE : stream->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

const std::array<std::pair<const char *, void *>, 10> functions = {{
    {"cuStreamWriteValue32", address(write_value)},
    {"cuStreamWriteValue32_v2", address(write_value)},
    {"cuStreamWaitValue32", address(wait_value)},
    {"cuStreamWaitValue32_v2", address(wait_value)},
    {"cuDeviceGetAttribute", address(device_attribute)},
    {"cuDeviceGet", address(device_get)},
    {"cuInit", address(init)},
    {"cuGetErrorString", address(error_name)},
    {"cuGetErrorName", address(error_name)},
    {"cuStreamQuery", address(query)},
}};

} // namespace

PRETEND_API cudaError_t cudaGetDriverEntryPointByVersion(const char * name, void ** function, unsigned int,
                                                         unsigned long long, cudaDriverEntryPointQueryResult * status) {
    *function = nullptr;
    for (const auto & [known, at] : functions) {
        if (std::strcmp(known, name) == 0) {
            *function = at;
        }
    }
    if (status != nullptr) {
        *status = *function != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGetDriverEntryPoint(const char * name, void ** function, unsigned long long flags,
                                                cudaDriverEntryPointQueryResult * status) {
    return cudaGetDriverEntryPointByVersion(name, function, CUDART_VERSION, flags, status);
}

PRETEND_API CUresult(cuStreamWriteValue32_v2)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    return write_value(stream, at, value, flags);
}

PRETEND_API CUresult(cuStreamWaitValue32_v2)(CUstream stream, CUdeviceptr at, cuuint32_t value, unsigned flags) {
    return wait_value(stream, at, value, flags);
}

// A card has one context. Its address tells which card it is.
static std::array<char, max_cards> contexts;

PRETEND_API CUresult cuCtxGetCurrent(CUcontext * context) {
    *context = reinterpret_cast<CUcontext>(&contexts.at(static_cast<size_t>(current_card())));
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuCtxSetCurrent(CUcontext context) {
    set_current_card(static_cast<int>(reinterpret_cast<char *>(context) - contexts.data()));
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuStreamGetCtx(CUstream handle, CUcontext * context) {
    const StreamPtr stream = stream_of(reinterpret_cast<cudaStream_t>(handle));
    if (stream == nullptr) {
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *context = reinterpret_cast<CUcontext>(&contexts.at(static_cast<size_t>(stream->card)));
    return CUDA_SUCCESS;
}

PRETEND_API CUresult(cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus * status) {
    cudaStreamCaptureStatus found = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(reinterpret_cast<cudaStream_t>(stream), &found);
    *status = static_cast<CUstreamCaptureStatus>(found);
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuStreamQuery(CUstream stream) {
    return settings().full_query ? CUDA_ERROR_OUT_OF_MEMORY : query(stream);
}

PRETEND_API CUresult cuEventQuery(CUevent event) {
    if (!settings().event_query) {
        return CUDA_ERROR_INVALID_CONTEXT;
    }
    switch (cudaEventQuery(reinterpret_cast<cudaEvent_t>(event))) {
    case cudaSuccess:
        return CUDA_SUCCESS;
    case cudaErrorNotReady:
        return CUDA_ERROR_NOT_READY;
    default:
        return CUDA_ERROR_INVALID_HANDLE;
    }
}

PRETEND_API CUresult cuGetErrorName(CUresult error, const char ** name) { return error_name(error, name); }

PRETEND_API CUresult cuInit(unsigned int flags) { return init(flags); }

PRETEND_API CUresult cuDeviceGet(CUdevice * device, int ordinal) { return device_get(device, ordinal); }

PRETEND_API CUresult cuDriverGetVersion(int * version) {
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}

PRETEND_API CUresult cuDeviceGetAttribute(int * value, CUdevice_attribute attribute, CUdevice device) {
    return device_attribute(value, attribute, device);
}

PRETEND_API CUresult cuGetErrorString(CUresult error, const char ** text) { return error_name(error, text); }
