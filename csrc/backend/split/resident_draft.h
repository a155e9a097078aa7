// A draft pass with resident experts alone: nothing runs on the host, and no memory is added but two rows a layer.
//
// Before a router's softmax (or what it has instead), a row of numbers is added to its products: 0 for a resident
// expert, and a very low number for every other one. So the router chooses among residents, and weights them as it
// weights all. What it would have chosen without the row is counted as the draft's demand: a prediction of what the
// verification will ask for.
#pragma once

#include "backend/graph/router.h"
#include "backend/graph/split_graph.h"
#include "backend/stream/compute_stream.h"
#include "core/mask.h"

#include <memory>
#include <vector>

namespace spac {

class ResidentDraft {
  public:
    explicit ResidentDraft(ComputeStream & stream) : stream_(stream) {}

    // Begins a graph.
    void begin() { pending_.clear(); }
    // Queues the dense nodes before a block of one token, up to ids of resident experts. `mask` may be null: none is
    // resident. Throws DeviceError if the router was not recognized or the device has no memory for the rows.
    ggml_status launch_before(SplitBlock & b, const Mask * mask, const ggml_cgraph * graph, bool counts);
    // Queues the fetch of what the routers of blocks that count found. Call it behind the graph's last block.
    void fetch(const SplitGraph & g);
    // Counts it. Call it when the stream has been synchronized.
    void count();

  private:
    // For each layer: the row that is added, and the products before that, on the device and on the host.
    struct Rows {
        std::shared_ptr<ModelExperts> experts;
        ggml_context_ptr              ctx;
        ggml_backend_buffer_ptr       buffer, host;
        ggml_tensor *                 added    = nullptr; // [n_expert, n_layer]
        ggml_tensor *                 products = nullptr; // the same shape
        std::vector<uint64_t>         versions;           // of the masks in `added`; 0: none yet

        float * host_added(int il) const;
        float * host_products(int il) const;
    };

    void make_rows(const SplitBlock & b);
    void prepare(SplitBlock & b);
    void send_row(const SplitBlock & b, const Mask * mask);

    ComputeStream &           stream_;
    Rows                      rows_;
    std::vector<SplitBlock *> pending_; // blocks of the graph under way whose products are not fetched yet
    std::vector<SplitBlock *> fetched_; // blocks whose products are on the way
};

} // namespace spac
