// Devices, errors, versions.
#include "memory.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <cstdio>
#include <cstring>

namespace pretend {
namespace {
thread_local cudaError_t last_error = cudaSuccess;
thread_local int         captures   = 0;
} // namespace

bool is_card(int device) { return device >= 0 && device < settings().cards; }

cudaError_t fail(cudaError_t error) { return last_error = error; }

void synchronize_card(int card) {
    for (const StreamPtr & stream : all_streams()) {
        if (card == all_cards || stream->card == card) {
            stream->synchronize();
        }
    }
}

bool under_capture() { return captures > 0; }
void note_capture(int change) { captures += change; }

} // namespace pretend

using namespace pretend;

PRETEND_API cudaError_t cudaGetLastError() {
    const cudaError_t error = last_error;
    last_error              = cudaSuccess;
    return error;
}

PRETEND_API cudaError_t cudaPeekAtLastError() { return last_error; }

PRETEND_API const char * cudaGetErrorString(cudaError_t error) {
    thread_local char text[48];
    std::snprintf(text, sizeof(text), "pretend CUDA error %d", static_cast<int>(error));
    return error == cudaErrorMemoryAllocation ? "out of memory" : text;
}

PRETEND_API cudaError_t cudaGetDeviceCount(int * n) {
    *n = settings().cards;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaGetDevice(int * device) {
    *device = current_card();
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaSetDevice(int device) {
    if (!is_card(device)) {
        return fail(cudaErrorInvalidDevice);
    }
    set_current_card(device);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaSetDeviceFlags(unsigned int) { return cudaSuccess; }

PRETEND_API cudaError_t cudaGetDeviceProperties(cudaDeviceProp * prop, int device) {
    if (!is_card(device)) {
        return fail(cudaErrorInvalidDevice);
    }
    *prop = {};
    std::snprintf(prop->name, sizeof(prop->name), "pretend card, compute capability %d.%d", settings().cc / 10,
                  settings().cc % 10);
    prop->totalGlobalMem                = settings().memory;
    prop->sharedMemPerBlock             = 48 << 10;
    prop->sharedMemPerBlockOptin        = 227 << 10;
    prop->sharedMemPerMultiprocessor    = 228 << 10;
    prop->regsPerBlock                  = 65536;
    prop->regsPerMultiprocessor         = 65536;
    prop->warpSize                      = 32;
    prop->maxThreadsPerBlock            = 1024;
    prop->maxThreadsPerMultiProcessor   = 2048;
    prop->major                         = settings().cc / 10;
    prop->minor                         = settings().cc % 10;
    prop->multiProcessorCount           = settings().n_sm;
    prop->canMapHostMemory              = 1;
    prop->unifiedAddressing             = 1;
    prop->asyncEngineCount              = 3;
    prop->l2CacheSize                   = 50 << 20;
    prop->cooperativeLaunch             = settings().execute.empty(); // if kernels compute, blocks run one by one
    prop->hostRegisterSupported         = settings().registers;
    prop->hostRegisterReadOnlySupported = settings().read_only;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetAttribute(int * value, cudaDeviceAttr attribute, int) {
    switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor:
        *value = settings().cc / 10;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = settings().cc % 10;
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = settings().n_sm;
        break;
    case cudaDevAttrMaxGridDimX:
        *value = 2147483647;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = 48 << 10;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = 227 << 10;
        break;
    case cudaDevAttrWarpSize:
        *value = 32;
        break;
    case cudaDevAttrHostRegisterSupported:
        *value = settings().registers;
        break;
    case cudaDevAttrHostRegisterReadOnlySupported:
        *value = settings().read_only;
        break;
    case cudaDevAttrCooperativeLaunch:
        *value = settings().execute.empty();
        break;
    case cudaDevAttrCanMapHostMemory:
    case cudaDevAttrUnifiedAddressing:
        *value = 1;
        break;
    default:
        *value = 0;
    }
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetPCIBusId(char * text, int size, int device) {
    std::snprintf(text, static_cast<size_t>(size), "0000:%02x:00.0", device + 1);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceCanAccessPeer(int * can, int, int) {
    *can = 0;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceEnablePeerAccess(int, unsigned int) { return fail(cudaErrorInvalidDevice); }

PRETEND_API cudaError_t cudaDeviceSynchronize() {
    if (under_capture()) {
        misuse("the device is synchronized while a stream is under capture");
        return fail(cudaErrorStreamCaptureUnsupported);
    }
    const int64_t start = now_ns();
    synchronize_card(current_card());
    count(Kind::device_synchronize, legacy_stream, 0, now_ns() - start);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemGetInfo(size_t * free, size_t * total) {
    *free  = device_free_bytes(current_card());
    *total = settings().memory;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaRuntimeGetVersion(int * version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDriverGetVersion(int * version) { return cudaRuntimeGetVersion(version); }
