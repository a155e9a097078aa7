// The device's part of a block: the chain on resident experts, by the mask.
//
// It owns the ids masks on the device: a row of slot ids per layer, refreshed on the compute stream when a block comes
// with a newer version. On a device whose kernels do not read negative ids there are none: the part is compact, of the
// (token, expert) pairs that the host lists.
#pragma once

#include "backend/compute_stream.h"
#include "backend/model_experts.h"
#include "backend/split_graph.h"

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

    // Queues it, and holds what it reads. In compact form the ids must be in staging.
    ggml_status launch(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                       const ggml_cgraph * graph);

  private:
    // Slot ids on the device, a row per layer, and the version of the mask in each.
    struct MaskTable {
        ggml_context_ptr           ctx;
        ggml_backend_buffer_ptr    buffer;
        std::vector<ggml_tensor *> rows;
        std::vector<uint64_t>      versions;
    };

    MaskTable & masks_of(ModelExperts & experts);
    void        refresh_mask(const SplitBlock & b, const std::shared_ptr<const Mask> & mask);
    int         send_pairs(SplitBlock & b, const Staging & s, const Mask & mask);

    ComputeStream & stream_;
    bool            masked_; // the device's kernels read negative ids

    std::map<ModelExperts *, std::pair<std::shared_ptr<ModelExperts>, MaskTable>> mask_tables_;
};

} // namespace spac
