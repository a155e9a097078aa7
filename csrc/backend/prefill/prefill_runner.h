// The runner of prefill streaming: it runs blocks of large batches in stages.
//
// It owns the weight stream. The first large batch makes it, and a graph that needs larger regions makes it again. The
// runner also knows which stage of the graph under way is next.
#pragma once

#include "backend/experts/slot_storage.h"
#include "backend/graph/split_graph.h"
#include "backend/prefill/pageable_uploads.h"
#include "backend/stream/compute_stream.h"
#include "core/mask.h"
#include "core/not_copied.h"
#include "core/trace.h"

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class ModelExperts;
class PinnedRanges;

// The weight stream of prefill streaming: the experts of large batches come to the device, instead of rows to the host.
//
// A prompt of hundreds of tokens uses nearly every expert of every layer, many times each. Then it is cheaper to copy a
// layer's experts to the device once and compute all rows there. Such a block runs in stages. Each stage has one matrix
// of all experts (and the biases behind it). There are two regions of device memory: while the device computes from
// one, the copy stream U fills the other.
//   U  waits until the last reader of the region has ended, copies the stage's weights (residents from their slots, the
//      others from host memory), records `filled`
//   D  (the compute stream) waits for `filled`, runs the stage's nodes, records `read`
// The host queues a graph and goes on without waiting. Only U reads slots, by one version of the layer's mask for every
// fill. U's copies have ended when D has passed its wait for `filled`. Until that wait is queued, the weight stream
// holds the mask. From then on D holds it, as it holds the masks of its launches.
class WeightStream : NotCopied {
  public:
    // Throws MemoryError if the device has no memory for the regions, and DeviceError if it has no stream or no events.
    WeightStream(const ComputeStream & compute, size_t region_bytes);
    ~WeightStream();

    size_t region_bytes() const { return region_bytes_; }
    // Makes `stage.staged`, in region `region`.
    void place(ggml_context * ctx, WeightStage & stage, int region);

    // The order of calls for every stage, on one thread, is: fill, wait_filled, the launch of the nodes, note_read. A
    // stage may be filled after note_read of the stage that used its region before.

    // Queues the copies of a stage of layer `layer` (-1: a layer without slots) and counts their bytes.
    void fill(const WeightStage & stage, ModelExperts & experts, int layer);
    void wait_filled(const WeightStage & stage, ComputeStream & compute);
    void note_read(const WeightStage & stage, ComputeStream & compute);
    // Waits for U. Call it when no filled stage will run any more, after synchronizing the compute stream. Some devices
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

    const ComputeStream &                      compute_;
    size_t                                     region_bytes_;
    bool                                       filled_     = false; // true if there was a fill since the last end()
    bool                                       way_chosen_ = false;
    std::unique_ptr<PageableUploads>           pageable_; // null: the driver stages copies from pageable memory
    ggml_backend_buffer_ptr                    buffer_;
    ggml_backend_buffer_ptr                    zeros_; // for the padding behind a weight
    std::array<Region, WeightStage::n_regions> regions_;
    // The masks of fills for which D does not wait yet. Their spans too, while a trace is on, if the device does not
    // record when it copies.
    std::vector<std::shared_ptr<const Mask>> held_;
    std::vector<Recorded>                    spans_;
    ggml_backend_ptr                         stream_; // the last member: its work ends before its memory is freed
};

class PrefillRunner {
  public:
    explicit PrefillRunner(ComputeStream & stream) : stream_(stream) {}

    // Makes the weight stream for graphs with these blocks now, if they are to run in stages.
    void reserve(const std::vector<Block> & blocks);
    // Returns true if blocks of this graph, which is about to be executed, run in stages; these are the blocks that
    // have stages afterwards. It prepares the stages if necessary, with `scratch`, the staging on the device.
    bool use(SplitGraph & g, ggml_backend_buffer_t scratch);
    // Runs such a block and the dense nodes before it. Call it for the blocks in their order.
    ggml_status run(const SplitBlock & b, const SplitGraph & g, const ggml_cgraph * graph);
    // Ends all work that was queued for stages, also of a graph that has failed. Call it after synchronizing the
    // compute stream.
    void end();
    // Notes which experts the last tokens of the last graph wanted, if that was asked for (Experts::set_tail_tokens).
    // Call it after synchronizing the compute stream.
    void note_tails();

  private:
    // The ids of a block's last tokens, on their way to the host. llama.cpp may have built its next graph in the memory
    // of this one when they are read, so the fields are copies.
    struct Tail {
        std::shared_ptr<ModelExperts> experts;
        int                           layer;
        size_t                        offset, stride; // bytes in tail_ids_, and from token to token
        int                           n_used, n_tokens;
    };

    bool refuses() const;
    bool make_stream(size_t region_bytes, const std::shared_ptr<ModelExperts> & experts);
    bool make_stages(SplitGraph & g, int n_tokens, ggml_backend_buffer_t scratch);
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, int region);
    void fetch_tail(const SplitBlock & b, size_t n_blocks);

    ComputeStream &               stream_;
    std::shared_ptr<void>         held_; // counts the bytes of weights_ at its model's experts
    std::unique_ptr<WeightStream> weights_;
    uint64_t                      generation_  = 0; // number of weights_
    size_t                        wanted_free_ = 0; // the device's free memory for another try; 0: nothing was refused
    size_t                        next_        = 0; // next stage of the graph under way
    ggml_backend_buffer_ptr       tail_ids_;        // host memory
    std::vector<Tail>             tails_;
};

} // namespace spac
