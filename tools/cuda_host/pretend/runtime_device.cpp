// Devices, errors, versions.
#include "memory.h"
#include "runtime.h"
#include "settings.h"
#include "stream.h"

#include <cstdio>
#include <map>

namespace pretend {
namespace {
thread_local cudaError_t last_error = cudaSuccess;
thread_local int         captures   = 0;
} // namespace

bool is_card(int device) { return device >= 0 && device < settings().cards; }

cudaError_t fail(cudaError_t error) { return last_error = error; }

void synchronize_card(int card) {
    for (const StreamPtr & stream : streams.all()) {
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
    prop->totalGlobalMem         = settings().memory;
    prop->sharedMemPerBlock      = 48 << 10;
    prop->sharedMemPerBlockOptin = 227 << 10;
    prop->warpSize               = 32;
    prop->maxThreadsPerBlock     = 1024;
    prop->major                  = settings().cc / 10;
    prop->minor                  = settings().cc % 10;
    prop->multiProcessorCount    = settings().n_sm;
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaDeviceGetAttribute(int * value, cudaDeviceAttr attribute, int) {
    static const std::map<cudaDeviceAttr, int> values = {
        {cudaDevAttrComputeCapabilityMajor, settings().cc / 10},
        {cudaDevAttrComputeCapabilityMinor, settings().cc % 10},
        {cudaDevAttrMultiProcessorCount, settings().n_sm},
        {cudaDevAttrMaxGridDimX, 2147483647},
        {cudaDevAttrMaxSharedMemoryPerBlock, 48 << 10},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, 227 << 10},
        {cudaDevAttrWarpSize, 32},
        {cudaDevAttrCooperativeLaunch, settings().execute.empty()}, // if kernels compute, blocks run one by one
    };
    const auto found = values.find(attribute);
    *value           = found != values.end() ? found->second : 0;
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
    synchronize_card(current_card());
    count(Kind::device_synchronize);
    return cudaSuccess;
}

PRETEND_API cudaError_t cudaMemGetInfo(size_t * free, size_t * total) {
    *free  = device_free_bytes(current_card());
    *total = settings().memory;
    return cudaSuccess;
}
