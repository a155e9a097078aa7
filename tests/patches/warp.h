// Runs CUDA kernels on the CPU, one block after another. A block's threads are coroutines that meet at every exchange
// between lanes. This header takes the place of ggml-cuda's common.cuh, as far as mmid.cu and add-id.cu read it.
// Threads that do not meet at the same exchange stop the process. A GPU leaves this undefined.
#pragma once

#include "ggml.h"

#include <algorithm>
#include <climits>
#include <csetjmp>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <type_traits>
#include <ucontext.h>
#include <vector>

#define __global__
#define __device__
#define __shared__
#define __launch_bounds__(...)
#define CUDA_SET_SHARED_MEMORY_LIMIT(...)
#define CUDA_CHECK(x) (void)(x)

struct dim3 {
    unsigned x, y, z;

    dim3(int64_t x, int64_t y = 1, int64_t z = 1) : x(x), y(y), z(z) {}
};

using cudaStream_t = void *;

inline int cudaGetLastError() { return 0; }

struct ggml_backend_cuda_context {
    cudaStream_t stream() { return nullptr; }
};

struct DeviceInfo {
    struct {
        int    warp_size;
        size_t smpbo;
    } devices[1];
};

constexpr int ggml_cuda_get_physical_warp_size() { return 32; }

inline int ggml_cuda_get_device() { return 0; }

inline DeviceInfo ggml_cuda_info() { return {{{32, 48 * 1024}}}; }

inline dim3 gridDim(1), blockDim(1), blockIdx(0), threadIdx(0);

char data_mm_ids_helper[48 * 1024]; // the shared memory that mmid.cu declares

namespace warp {

inline std::vector<int>      values[2]; // the lanes' values at this exchange and at the one before
inline std::vector<int>      meetings;  // the number of exchanges of each thread
inline std::vector<char>     finished;
inline std::function<void()> body;

// A thread runs its body once for every block. Only its first start needs a context of ucontext.h: each of these
// switches asks the system for the signal mask, and _setjmp does not.
struct Thread {
    std::vector<char> stack = std::vector<char>(32 * 1024);
    ucontext_t        start;
    jmp_buf           place;
};

inline std::deque<Thread> threads;
inline jmp_buf            scheduler;

inline void leave(unsigned i) {
    if (_setjmp(threads[i].place) == 0) {
        _longjmp(scheduler, 1);
    }
}

inline void enter(unsigned i) {
    if (_setjmp(scheduler) == 0) {
        _longjmp(threads[i].place, 1);
    }
}

inline void run(unsigned i) {
    for (;;) {
        leave(i);
        body();
        finished[i] = 1;
    }
}

inline void add_thread() {
    const unsigned i  = threads.size();
    Thread &       it = threads.emplace_back();
    getcontext(&it.start);
    it.start.uc_stack.ss_sp   = it.stack.data();
    it.start.uc_stack.ss_size = it.stack.size();
    makecontext(&it.start, reinterpret_cast<void (*)()>(run), 1, i);
    if (_setjmp(scheduler) == 0) {
        setcontext(&it.start);
    }
}

// Gives `value` to all threads of the block. Returns the values of all threads, valid until the next exchange.
inline const std::vector<int> & exchange(int value) {
    const unsigned me  = threadIdx.x;
    auto &         all = values[meetings[me]++ % 2];
    all[me]            = value;
    leave(me);
    return all;
}

inline void run_block(unsigned n_threads) {
    while (threads.size() < n_threads) {
        add_thread();
    }
    meetings.assign(n_threads, 0);
    finished.assign(n_threads, 0);
    values[0].assign(n_threads, 0);
    values[1].assign(n_threads, 0);
    while (!finished[0]) {
        for (unsigned i = 0; i < n_threads; ++i) {
            threadIdx.x = i;
            enter(i);
            if (finished[i] != finished[0] || meetings[i] != meetings[0]) {
                fprintf(stderr, "thread %u of block %u does not meet the others\n", i, blockIdx.x);
                abort();
            }
        }
    }
}

// The test rewrites kernel<<<grid, block, shared, stream>>>(arguments) to launch(grid, block, shared, stream,
// kernel)(arguments).
template <typename Kernel> auto launch(dim3 grid, dim3 block, size_t, cudaStream_t, Kernel kernel) {
    return [=](auto... arguments) {
        gridDim  = grid;
        blockDim = block;
        body     = [&] { kernel(arguments...); };
        for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
            for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
                run_block(block.x);
            }
        }
    };
}

} // namespace warp

inline void ggml_cuda_syncwarp() { warp::exchange(0); }

inline int __shfl_sync(unsigned, int value, int lane, int width) {
    const int first = int(threadIdx.x) / width * width;
    return warp::exchange(value)[first + lane];
}

inline int __shfl_up_sync(unsigned, int value, int distance, int width) {
    const int me = int(threadIdx.x);
    return warp::exchange(value)[me % width >= distance ? me - distance : me];
}

template <int width> int warp_reduce_any(int value) {
    const auto & all   = warp::exchange(value);
    const auto   first = all.begin() + threadIdx.x / width * width;
    return std::any_of(first, first + width, [](int v) { return v != 0; });
}

template <int width> int warp_reduce_sum(int value) {
    const auto & all   = warp::exchange(value);
    const auto   first = all.begin() + threadIdx.x / width * width;
    int          sum   = 0;
    std::for_each(first, first + width, [&](int v) { sum += v; });
    return sum;
}
