// The device's part of a block: the chain on resident experts, by the mask.
//
// It owns the ids masks on the device: a row of slot ids per layer, refreshed on the compute stream when a block comes
// with a newer version. On a device whose kernels do not read negative ids there are none: the part is compact, of the
// (token, expert) pairs that the host lists.
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/split/hand_off.h"
#include "backend/stream/compute_stream.h"

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class DevicePart {
  public:
    explicit DevicePart(ComputeStream & stream);

    // Whether the block's part is made for other slots than those of `now`.
    static bool stale(const SplitBlock & b, const ModelExperts::Snapshot & now) {
        return b.storage_generation != now.generation || !b.storage;
    }
    // Makes it; no launch that reads the older one may be under way. `scratch`: the staging on the device.
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, const ModelExperts::Snapshot & now);

    // Queues it, and holds what it reads. The masked form computes the block's output, with rows of zeros where the
    // host computes; the compact one, for which the ids must be in staging, rows of its own.
    ggml_status launch(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                       const ggml_cgraph * graph);
    // Masked form, with a mask that is chosen before the stream comes here: where its row is to be written then.
    bool        rows_pinned(const SplitBlock & b) { return stream_.is_pinned(masks_of(*b.experts)->staging); }
    int32_t *   reserve_row(const SplitBlock & b);
    static void write_row(const LateMask & late, const Mask * mask); // null: no expert is resident
    ggml_status launch(SplitBlock & b, const LateMask & late, const ggml_cgraph * graph);
    // Compact form: queues the way of these rows into the output, behind the host's.
    ggml_status scatter(const SplitBlock & b, const ggml_cgraph * graph);

    // Whether blocks get the masked form.
    bool masked() const { return masked_; }

  private:
    // Slot ids on the device, a row per layer, and the version of the mask in each.
    struct MaskTable {
        ggml_context_ptr           ctx;
        ggml_backend_buffer_ptr    buffer;
        std::vector<ggml_tensor *> rows;
        std::vector<uint64_t>      versions;
        // where rows leave from, pinned where the device can: two a layer, used in turn
        ggml_backend_buffer_ptr staging;
        size_t                  width = 0; // of a place
        std::vector<uint64_t>   n_sent;    // by layer
        std::vector<uint64_t>   left;      // by place: the mark behind the last copy from it
    };

    MaskTable * masks_of(ModelExperts & experts);
    void        refresh_mask(const SplitBlock & b, const std::shared_ptr<const Mask> & mask);
    void        send_row(const SplitBlock & b, const int32_t * row, uint64_t version);
    int         send_pairs(SplitBlock & b, const Staging & s, const Mask & mask);

    ComputeStream & stream_;
    bool            masked_; // the device's kernels read negative ids

    std::map<ModelExperts *, std::pair<std::shared_ptr<ModelExperts>, MaskTable>> mask_tables_;
};

} // namespace spac
