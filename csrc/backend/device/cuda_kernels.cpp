// This file counts what CUDA's kernels take of the device's memory, and acts where they get none (kernel_memory.h).
#if defined(SPAC_WITH_CUDA)

#include "backend/device/cuda_memory.h"
#include "backend/device/device.h"
#include "backend/device/ggml_internals.h"
#include "backend/device/kernel_memory.h"
#include "core/error.h"

#include <string>

void * ggml_backend_cuda_stream(ggml_backend_t backend); // patches/0003-cuda-stream.patch

// These are CUDA's runtime's; its headers are not at hand where ggml-cuda's objects were compiled elsewhere.
extern "C" int cudaPeekAtLastError();
extern "C" int cudaGetLastError();

namespace spac {
namespace {

constexpr int out_of_memory = 2; // cudaErrorMemoryAllocation

// Returns ggml's device for a card, or null.
ggml_backend_dev_t device_of_card(int card) {
    try {
        return inner_device("CUDA" + std::to_string(card));
    } catch (const InputError &) {
        return nullptr;
    }
}

// Returns true if this thread has a device compute, and ggml-cuda can be left by an exception.
bool may_unwind() {
    ggml_backend_t const stream = Computing::stream();
    int                  state  = 0;
    return stream != nullptr && cuda_is_capturing(ggml_backend_cuda_stream(stream), &state) == 0 && state == 0;
}

// Returns true if the current card has less memory than a workspace takes.
bool is_full() {
    constexpr size_t least = size_t{32} << 20;
    size_t           free = 0, total = 0;
    return cuda_memory_info(&free, &total) == 0 && free < least;
}

void note_change(int card, ptrdiff_t bytes) {
    if (ggml_backend_dev_t const device = device_of_card(card); device != nullptr) {
        count_kernel_memory(device, bytes);
    }
}

void refuse(int card, size_t bytes) {
    if (ggml_backend_dev_t const device = device_of_card(card); device != nullptr && may_unwind()) {
        refuse_kernels(device, bytes);
    }
}

[[gnu::constructor]] void listen() { cuda_pools = {note_change, refuse}; }

} // namespace

void unwind_if_full() {
    ggml_backend_t const stream = Computing::stream();
    if (stream == nullptr || !(cudaPeekAtLastError() == out_of_memory || is_full()) || !may_unwind()) {
        return;
    }
    cudaGetLastError(); // ggml would take the error for that of a later launch
    refuse_kernels(ggml_backend_get_device(stream), 0);
}

} // namespace spac
#endif
