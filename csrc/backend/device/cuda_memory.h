// This listener is told of the pools of ggml-cuda. The unpatched library shares cuda_memory.cpp, and has no listener.
#pragma once

#include <cstddef>

namespace spac {

struct CudaPools {
    // Called when the pools on a card, by CUDA's number, have taken so many bytes, or given them back (negative).
    void (*changed)(int card, ptrdiff_t bytes) = nullptr;
    // Called when a card has no memory for so many bytes. ggml-cuda ends the process if it returns.
    void (*refused)(int card, size_t bytes) = nullptr;
};
extern CudaPools cuda_pools;

// Calls a function of CUDA's driver. Returns its status, which is not 0 if the driver lacks the function.
int cuda_is_capturing(void * stream, int * state);
int cuda_memory_info(size_t * free, size_t * total);

} // namespace spac
