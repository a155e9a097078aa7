// The loader of misses: it brings experts that a block uses and that are not resident to the device, within the layer.
//
// The ids are on the host then. The loader gives slots to missing experts (core/residency.h) and queues their copies on
// a copy stream U of its own. D waits for U, and then runs the device's part by a mask that has them. The host computes
// the others meanwhile. When D has passed a later mark, the experts are published: they are resident from then on.
#pragma once

#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/stream/compute_stream.h"
#include "core/not_copied.h"

#include <cstdint>
#include <memory>

namespace spac {

class MissLoader : NotCopied {
  public:
    explicit MissLoader(ComputeStream & stream) : stream_(stream) {}
    ~MissLoader();

    // Returns true if misses of this graph may be loaded.
    static bool loads(const SplitGraph & g);
    // Queues the copies of missing experts of a block, whose ids have arrived, and the wait for them. Returns the mask
    // for this execution, and the mask without these experts, which is for counting only. Call finish() before the next
    // load().
    struct Masks {
        std::shared_ptr<const Mask> used, resident;
    };
    Masks load(SplitBlock & b, const Staging & s, ModelExperts::Snapshot now);
    // Waits for the copies of the last load(), and notes their time.
    void await();
    // Publishes the experts of the last load(). The compute stream has passed a mark behind their copies.
    void finish();

  private:
    bool make_stream();
    void copy(const ModelExperts & experts, const ModelExperts::Misses & misses);

    ComputeStream &               stream_;
    ggml_backend_event_ptr        copied_;
    ggml_backend_ptr              copies_; // U
    bool                          refused_ = false;
    std::shared_ptr<ModelExperts> experts_; // of the load under way; null without one
    ModelExperts::Misses          under_way_;
    size_t                        bytes_    = 0;
    int64_t                       start_ns_ = 0, end_ns_ = 0; // of the copies; no end before await()
};

} // namespace spac
