// The weight stream of prefill streaming: the experts of large batches come to the device, instead of rows to the host.
//
// A prompt of hundreds of tokens uses nearly every expert of every layer, many times each. Then it is cheaper to copy a
// layer's experts to the device once and compute all rows there. Such a block runs in turns. Each turn has one matrix
// of all experts (and the biases behind it). There are two regions of device memory: while the device computes from
// one, the copy stream U fills the other.
//   U  waits until the last reader of the region has ended, copies the turn's weights (residents from their slots, the
//      others from host memory), records `filled`
//   D  (the compute stream) waits for `filled`, runs the turn's nodes, records `read`
// The host queues a graph and goes on without waiting. Only U reads slots, by one version of the layer's mask for every
// fill. U's copies have ended when D has passed its wait for `filled`. Until that wait is queued, the weight stream
// holds the mask. From then on D holds it, as it holds the masks of its launches.
#pragma once

#include "backend/experts/slot_storage.h"
#include "backend/prefill/pageable_uploads.h"
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
    // Throws MemoryError if the device has no memory for the regions, and DeviceError if it has no stream or no events.
    WeightStream(const ComputeStream & compute, size_t region_bytes);
    ~WeightStream();
    WeightStream(const WeightStream &)             = delete;
    WeightStream & operator=(const WeightStream &) = delete;

    size_t region_bytes() const { return region_bytes_; }
    // Makes `turn.staged`, in region `region`.
    void place(ggml_context * ctx, WeightTurn & turn, int region);

    // The order of calls for every turn, on one thread, is: fill, wait_filled, the launch of the nodes, note_read. A
    // turn may be filled after note_read of the turn that used its region before.

    // Queues the copies of a turn of layer `layer` (-1: a layer without slots) and counts their bytes.
    void fill(const WeightTurn & turn, ModelExperts & experts, int layer);
    void wait_filled(const WeightTurn & turn, ComputeStream & compute);
    void note_read(const WeightTurn & turn, ComputeStream & compute);
    // Waits for U. Call it when no filled turn will run any more, after synchronizing the compute stream. Some devices
    // (Vulkan) reuse their resources for copies and events only after such a wait.
    void end();

  private:
    struct Region {
        char *                 base = nullptr;
        ggml_backend_event_ptr filled, read;
    };
    struct Moved {
        size_t uploaded = 0, copied = 0; // bytes over the link, and on the device
        size_t staged = 0;               // of the former, those that passed our pinned ring
    };
    struct Slots; // the slots that a fill reads, by the mask
    using Recorded = std::pair<std::shared_ptr<Trace>, Span>;

    Moved  copy_weight(const ggml_tensor & weight, ggml_tensor & staged, const Slots & slots, int w,
                       const PinnedRanges & pinned);
    size_t upload(ggml_tensor & staged, const char * from, size_t offset, size_t bytes);
    bool   copy_from_slots(ggml_tensor & from, size_t from_byte, ggml_tensor & to, size_t to_byte, size_t bytes);
    void   need_zeros(size_t bytes);
    void   clear_padding(ggml_tensor & staged);

    std::shared_ptr<Recorded> begin_span(const ModelExperts & experts, int layer);
    void                      end_span(const std::shared_ptr<Recorded> & recorded, const Moved & moved);

    const ComputeStream &                     compute_;
    size_t                                    region_bytes_;
    bool                                      filled_     = false; // true if there was a fill since the last end()
    bool                                      way_chosen_ = false;
    std::unique_ptr<PageableUploads>          pageable_; // null: the driver stages copies from pageable memory
    ggml_backend_buffer_ptr                   buffer_;
    ggml_backend_buffer_ptr                   zeros_; // for the padding behind a weight
    std::array<Region, WeightTurn::n_regions> regions_;
    // The masks of fills for which D does not wait yet. Their spans too, while a trace is on, if the device does not
    // record when it copies.
    std::vector<std::shared_ptr<const Mask>> held_;
    std::vector<Recorded>                    spans_;
    ggml_backend_ptr                         stream_; // the last member: its work ends before its memory is freed
};

} // namespace spac
