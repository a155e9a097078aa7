// A device's own kernels for the hand-off of a block. One kernel sends to the host all that it needs, and signals. One
// takes the host's rows, and reads those alone that the device has not computed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace spac {

// Memory of the device, and the pinned memory of the host that gets a copy. Addresses and size are multiples of four.
struct SentPiece {
    const void * from  = nullptr;
    void *       to    = nullptr;
    size_t       bytes = 0;
};

// A block's output on the device, and the host's rows in pinned memory. Both have `n_rows` rows of `row_bytes` bytes (a
// multiple of four), one behind the other.
struct HostRows {
    void *          out       = nullptr;
    const void *    rows      = nullptr;
    const int32_t * ids       = nullptr; // on the device: rows with a negative id are the host's; null: all rows are
    int             n_rows    = 0;
    size_t          row_bytes = 0;
};

// The thread that launches calls both functions. They throw DeviceError if the device refuses.
class Exchange {
  public:
    virtual ~Exchange() = default;

    static constexpr int most_pieces = 3; // ids, input, scores
    using Pieces                     = std::array<SentPiece, most_pieces>;

    // Queues a kernel that copies all pieces, and then gives signal `n` of the stream's gate (0: none). What was queued
    // before has ended by then.
    virtual void queue_send(const Pieces & pieces, uint64_t n) = 0;
    // Queues a kernel that copies the host's rows to the output.
    virtual void queue_take(const HostRows & rows) = 0;
};

// Makes the exchange of a CUDA stream (cuda_exchange.cu). `signal` is the word in pinned memory that signals go to.
// `ticket` is a word on the device, which is zero and belongs to this exchange.
std::unique_ptr<Exchange> cuda_exchange(void * stream, uint32_t * signal, uint32_t * ticket);

} // namespace spac
