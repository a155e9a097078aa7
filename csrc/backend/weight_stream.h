// Large batches: the experts come to the device, instead of the rows to the host.
//
// A prompt of hundreds of tokens wants nearly every expert of every layer, many times each. Copying a layer's experts
// over once and computing all rows there is then cheaper than the host's arithmetic. Such a block runs in turns, each
// of one matrix of all experts (and the biases behind it). Two regions of device memory take them in turn: while the
// device computes from one, the copy stream U fills the other.
//   U  waits until what read the region last is over, copies the turn's weights, records `filled`
//   D  (the compute stream) waits for `filled`, runs the turn's nodes, records `read`
// The host waits for nothing: it queues a graph and goes on. Slots are neither read nor changed.
#pragma once

#include "backend/block.h"

#include <array>
#include <vector>

namespace spac {

class WeightStream {
  public:
    static constexpr int n_regions = 2;

    // What the device holds at the same time, and the nodes that it is held for.
    struct Turn {
        std::vector<const ggml_tensor *> weights; // in the store
        std::vector<size_t>              offsets; // of these in a region
        std::vector<ggml_tensor *>       staged;  // the same in the region
        std::vector<ggml_tensor *>       nodes;
        int                              region = 0;
    };

    // The turns of a block, without nodes and regions; none where its chain does not run in turns.
    static std::vector<Turn> turns_of(const Block & block, ggml_backend_buffer_type_t type);
    // Bytes of a region that can hold each of these turns.
    static size_t region_bytes(const std::vector<Turn> & turns, ggml_backend_buffer_type_t type);

    // Whether the regions are small next to the device's memory: slots are what it is there for.
    static bool affordable(ggml_backend_dev_t device, size_t region_bytes);

    // Throws MemoryError when the device has no room for the regions, DeviceError when it has no stream or no events.
    WeightStream(ggml_backend_dev_t device, size_t region_bytes);
    ~WeightStream();
    WeightStream(const WeightStream &)             = delete;
    WeightStream & operator=(const WeightStream &) = delete;

    size_t region_bytes() const { return region_bytes_; }
    // Makes `turn.staged`, in region `region`.
    void place(ggml_context * ctx, Turn & turn, int region);

    // The order of calls for every turn, on one thread: fill, wait_filled, the launch of the nodes, note_read. A turn
    // may be filled once the one before the last has been noted. Returns the bytes that were queued.
    size_t fill(const Turn & turn);
    void   wait_filled(const Turn & turn, ggml_backend_t compute);
    void   note_read(const Turn & turn, ggml_backend_t compute);

  private:
    struct Region {
        char *                 base = nullptr;
        ggml_backend_event_ptr filled, read;
    };

    size_t                        region_bytes_;
    ggml_backend_buffer_ptr       buffer_;
    std::vector<char>             zeros_; // for the padding behind a weight
    std::array<Region, n_regions> regions_;
    ggml_backend_ptr              stream_; // last: what is under way ends before the rest goes
};

} // namespace spac
