#include "backend/device/stream_gate.h"
#include "core/error.h"

#include <algorithm>
#include <string>

#include <cuda_runtime.h>

namespace spac {

// Copies a piece. `first` and `step` divide its words among the grid's threads.
static __device__ void copy_words(uint32_t * to, const uint32_t * from, unsigned n, unsigned first, unsigned step) {
    const bool wide =
        (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from) | n * sizeof(uint32_t)) % 16 == 0;
    if (wide) {
        for (unsigned i = first; i < n / 4; i += step) {
            reinterpret_cast<uint4 *>(to)[i] = reinterpret_cast<const uint4 *>(from)[i];
        }
    } else {
        for (unsigned i = first; i < n; i += step) {
            to[i] = from[i];
        }
    }
}

// Copies three pieces to the host's memory. The last block to end writes `mark` to the signal's word, if there is one.
// Every thread makes its own writes visible to the host before its block takes a ticket.
static __global__ void send_to_host(const uint32_t * from_0, uint32_t * to_0, unsigned n_0, const uint32_t * from_1,
                                    uint32_t * to_1, unsigned n_1, const uint32_t * from_2, uint32_t * to_2,
                                    unsigned n_2, unsigned * ticket, volatile unsigned * signal, unsigned mark) {
    const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
    copy_words(to_0, from_0, n_0, first, step);
    copy_words(to_1, from_1, n_1, first, step);
    copy_words(to_2, from_2, n_2, first, step);
    if (signal == nullptr) {
        return;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0 && (gridDim.x == 1 || atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1)) {
        __threadfence_system();
        *signal = mark;
    }
}

// Copies one row for each block of the grid's x. The blocks along y divide a row's words.
static __global__ void take_from_host(uint32_t * out, const uint32_t * rows, const int * ids, unsigned n_words) {
    if (ids != nullptr && ids[blockIdx.x] >= 0) {
        return; // the device has computed this row
    }
    const size_t at = size_t{blockIdx.x} * n_words;
    copy_words(out + at, rows + at, n_words, blockIdx.y * blockDim.x + threadIdx.x, gridDim.y * blockDim.x);
}

namespace {

constexpr unsigned n_threads   = 256;
constexpr unsigned most_blocks = 32; // of a kernel that sends, or along a row
constexpr unsigned per_thread  = 4;  // words that a thread copies at once

void check(cudaError_t status) {
    if (status != cudaSuccess) {
        throw DeviceError(std::string("the GPU failed: ") + cudaGetErrorString(status));
    }
}

// Returns the blocks that give each thread one wide copy, up to a limit.
unsigned blocks_for(size_t words) {
    const size_t per_block = size_t{per_thread} * n_threads;
    return static_cast<unsigned>(std::clamp<size_t>((words + per_block - 1) / per_block, 1, most_blocks));
}

class CudaExchange : public Exchange {
  public:
    CudaExchange(cudaStream_t stream, uint32_t * signal, uint32_t * ticket)
        : stream_(stream), signal_(signal), ticket_(ticket) {
        cudaPointerAttributes of_ticket = {};
        check(cudaPointerGetAttributes(&of_ticket, ticket));
        device_ = of_ticket.device;
    }

    void queue_send(const Pieces & pieces, uint64_t n) override {
        size_t most = 0;
        for (const SentPiece & piece : pieces) {
            most = std::max(most, piece.bytes / sizeof(uint32_t));
        }
        const auto from  = [&](int i) { return static_cast<const uint32_t *>(pieces[i].from); };
        const auto to    = [&](int i) { return static_cast<uint32_t *>(pieces[i].to); };
        const auto words = [&](int i) { return static_cast<unsigned>(pieces[i].bytes / sizeof(uint32_t)); };
        use_device();
        send_to_host<<<blocks_for(most), n_threads, 0, stream_>>>(from(0), to(0), words(0), from(1), to(1), words(1),
                                                                  from(2), to(2), words(2), ticket_,
                                                                  n > 0 ? signal_ : nullptr, static_cast<unsigned>(n));
        check(cudaGetLastError());
    }

    void queue_take(const HostRows & rows) override {
        const size_t words = rows.row_bytes / sizeof(uint32_t);
        use_device();
        take_from_host<<<dim3(static_cast<unsigned>(rows.n_rows), blocks_for(words)), n_threads, 0, stream_>>>(
            static_cast<uint32_t *>(rows.out), static_cast<const uint32_t *>(rows.rows), rows.ids,
            static_cast<unsigned>(words));
        check(cudaGetLastError());
    }

  private:
    // Makes the stream's device the thread's current one, as a launch needs it.
    void use_device() const {
        int now = -1;
        check(cudaGetDevice(&now));
        if (now != device_) {
            check(cudaSetDevice(device_));
        }
    }

    cudaStream_t stream_;
    uint32_t *   signal_;
    uint32_t *   ticket_;
    int          device_ = 0;
};

} // namespace

std::unique_ptr<Exchange> cuda_exchange(void * stream, uint32_t * signal, uint32_t * ticket) {
    return std::make_unique<CudaExchange>(static_cast<cudaStream_t>(stream), signal, ticket);
}

} // namespace spac
