// The device's part of a block: the chain on resident experts, by the mask.
//
// It owns the masks on the device: one row of slot ids per layer. The compute stream refreshes a row when a block has a
// newer version of its mask. If the device's kernels cannot read negative ids, there are no masks on the device. Then
// the part is compact: it consists of the (token, expert) pairs that the host lists.
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

    // Returns true if the block's part was made for other slots than those of `now`.
    static bool stale(const SplitBlock & b, const ModelExperts::Snapshot & now) {
        return b.storage_generation != now.generation || b.storage.expired();
    }
    // Makes the part. No launch that reads the older one may be under way. `scratch` is the staging on the device.
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, const ModelExperts::Snapshot & now);

    // Queues the part, and holds the memory that it reads. The masked form computes the block's output, with zeros in
    // the host's rows. The compact form computes separate rows, and needs the ids in staging.
    ggml_status launch(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                       const ggml_cgraph * graph);
    // Masked form, with a mask that is chosen after the part was queued and before the stream runs it. reserve_row()
    // returns the memory to which write_row() then writes the mask's row.
    bool        rows_pinned(const SplitBlock & b) { return stream_.is_pinned(masks_of(*b.experts)->staging); }
    int32_t *   reserve_row(const SplitBlock & b);
    static void write_row(const LateMask & late, const Mask * mask); // null: no resident expert
    ggml_status launch(SplitBlock & b, const LateMask & late, const ggml_cgraph * graph);
    // Compact form: queues the copies of these rows into the output, behind those of the host's rows.
    ggml_status scatter(const SplitBlock & b, const ggml_cgraph * graph);

    // Returns true if blocks get the masked form.
    bool masked() const { return masked_; }

  private:
    // Slot ids on the device, one row per layer, and the version of the mask in each row.
    struct MaskTable {
        ggml_context_ptr           ctx;
        ggml_backend_buffer_ptr    buffer;
        std::vector<ggml_tensor *> rows;
        std::vector<uint64_t>      versions;
        // the host memory that rows are copied from, pinned if the device can: two places per layer, used in turn
        ggml_backend_buffer_ptr staging;
        size_t                  width = 0; // number of ids in a place
        std::vector<uint64_t>   n_sent;    // rows sent so far, by layer
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
