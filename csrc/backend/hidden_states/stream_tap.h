// The implementation of a tap, which the stream of its context calls.
//
// The device copies the states without the host's help. Behind each node that enters an FFN, the graph gets one more
// node, which copies the row to memory that no other node overwrites. One copy of all rows to the host is queued behind
// the graph. So the device still gets a token's graph in one launch. The host has no further wait, because a drafting
// program reads each token's logits before it decodes the next.
#pragma once

#include "backend/graph/graph_image.h"
#include "backend/hidden_states/tap.h"
#include "backend/stream/compute_stream.h"

#include <functional>
#include <memory>
#include <vector>

namespace spac {

class StreamTap : public Tap {
  public:
    // ---- Tap
    int                          n_layer() const override { return n_layer_; }
    int                          n_embd() const override { return n_embd_; }
    void                         set_on(bool on) override;
    std::shared_ptr<const float> states() const override;
    uint64_t                     n_tapped() const override { return n_tapped_; }

    // ---- the stream's side: `stream` is its compute stream
    using Run = std::function<ggml_status(ggml_cgraph * graph)>;
    // Notes the number of FFNs of a graph that will come.
    void plan(const ComputeStream & stream, const ggml_cgraph * graph);
    // Ends the tap, because its context is freed. None of the context's work may run any more.
    void end();
    // Calls `run` with the graph, or with its tapped form if it is to be tapped.
    ggml_status compute(ComputeStream & stream, ggml_cgraph * graph, const Run & run);

  private:
    // A graph with the tap's nodes in it.
    struct Tapped {
        explicit Tapped(const ggml_cgraph * graph) : image(graph), source(graph->uid), uid(ggml_graph_next_uid()) {}

        GraphImage                 image;
        uint64_t                   source; // the uid that the graph had last
        const uint64_t             uid;
        uint64_t                   used = 0; // time of the last use: the least recently used one is dropped first
        ggml_context_ptr           ctx;
        std::vector<ggml_tensor *> nodes;
    };

    Tapped * tapped(ComputeStream & stream, const ggml_cgraph * graph);
    Tapped * add(ComputeStream & stream, const ggml_cgraph * graph, const std::vector<ggml_tensor *> & inputs);
    bool     fits(const std::vector<ggml_tensor *> & inputs) const;
    size_t   row_bytes() const { return sizeof(float) * static_cast<size_t>(n_embd_); }
    size_t   bytes() const { return row_bytes() * static_cast<size_t>(n_layer_); }

    ggml_backend_dev_t                   device_  = nullptr; // the wrapped device, after plan()
    bool                                 on_      = false;
    int                                  n_layer_ = 0;
    int                                  n_embd_  = 0;
    ggml_backend_buffer_ptr              rows_; // on the device
    ggml_context_ptr                     ctx_;
    ggml_tensor *                        all_rows_ = nullptr;
    std::shared_ptr<ggml_backend_buffer> states_;          // on the host, pinned if the device can
    bool                                 arrives_ = false; // the last graph's states arrive when it ends
    std::vector<std::unique_ptr<Tapped>> graphs_;
    uint64_t                             n_asked_ = 0, n_tapped_ = 0;
    uint64_t                             untapped_ = 0; // uid of the last graph that was not tapped
};

// Returns the tap of the scope that is open on this thread, or null if none is.
std::shared_ptr<StreamTap> tap_for_context();

} // namespace spac
