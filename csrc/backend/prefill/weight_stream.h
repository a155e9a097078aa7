// Large batches: the experts come to the device, instead of the rows to the host.
//
// A prompt of hundreds of tokens wants nearly every expert of every layer, many times each. Bringing a layer's experts
// together once and computing all rows there is then cheaper than the host's arithmetic. Such a block runs in turns,
// each of one matrix of all experts (and the biases behind it). Two regions of device memory take them in turn: while
// the device computes from one, the copy stream U fills the other.
//   U  waits until what read the region last is over, copies the turn's weights (residents from their slots, the others
//      from host memory), records `filled`
//   D  (the compute stream) waits for `filled`, runs the turn's nodes, records `read`
// The host waits for nothing: it queues a graph and goes on. Slots are read by U alone, by one version of the layer's
// mask for every fill. U's copies are over when D has passed its wait for `filled`: from that wait on D holds the mask
// as it holds those of its launches, until then the weight stream does.
#pragma once

#include "backend/experts/weight_turns.h"
#include "core/mask.h"
#include "core/trace.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class ComputeStream;
class ModelExperts;
class PinnedRanges;

class WeightStream {
  public:
    // Throws MemoryError when the device has no room for the regions, DeviceError when it has no stream or no events.
    WeightStream(const ComputeStream & compute, size_t region_bytes);
    ~WeightStream();
    WeightStream(const WeightStream &)             = delete;
    WeightStream & operator=(const WeightStream &) = delete;

    size_t region_bytes() const { return region_bytes_; }
    // Makes `turn.staged`, in region `region`.
    void place(ggml_context * ctx, WeightTurn & turn, int region);

    // The order of calls for every turn, on one thread: fill, wait_filled, the launch of the nodes, note_read. A turn
    // may be filled once the one before the last has been noted.

    // Queues the copies of a turn of layer `layer` (-1: one that has no slots) and counts their bytes.
    void fill(const WeightTurn & turn, ModelExperts & experts, int layer);
    void wait_filled(const WeightTurn & turn, ComputeStream & compute);
    void note_read(const WeightTurn & turn, ComputeStream & compute);
    // No more turns come of those that were filled, and the compute stream has been synchronized. Waits for U: only
    // then do some devices (Vulkan) use again what they keep for every copy and event.
    void end();

  private:
    struct Region {
        char *                 base = nullptr;
        ggml_backend_event_ptr filled, read;
    };
    struct Moved {
        size_t uploaded = 0, copied = 0; // bytes over the link, and on the device
    };
    struct Slots; // what a fill reads of a pool, by the mask
    using Recorded = std::pair<std::shared_ptr<Trace>, Span>;

    Moved copy_weight(const ggml_tensor & weight, ggml_tensor & staged, const Slots & slots, int w,
                      const PinnedRanges & pinned);
    bool  copy_from_slots(ggml_tensor & from, size_t from_byte, ggml_tensor & to, size_t to_byte, size_t bytes);
    void  need_zeros(size_t bytes);
    void  clear_padding(ggml_tensor & staged);

    std::shared_ptr<Recorded> begin_span(const ModelExperts & experts, int layer);
    void                      end_span(const std::shared_ptr<Recorded> & recorded, const Moved & moved);

    const ComputeStream &                     compute_;
    size_t                                    region_bytes_;
    bool                                      filled_ = false; // since the last end()
    ggml_backend_buffer_ptr                   buffer_;
    ggml_backend_buffer_ptr                   zeros_; // for the padding behind a weight
    std::array<Region, WeightTurn::n_regions> regions_;
    // Of the fills that D does not wait for yet: the masks that they read; and their spans, while a trace is on, where
    // the device does not say when it copies.
    std::vector<std::shared_ptr<const Mask>> held_;
    std::vector<Recorded>                    spans_;
    ggml_backend_ptr                         stream_; // last: what is under way ends before the rest goes
};

} // namespace spac
