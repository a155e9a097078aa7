// The cache of one stream's prepared graphs, and the staging memory that they share.
//
// It owns both. A graph's tensors point into the staging, so larger staging empties the cache. A graph is found by its
// uid, or by its image if it was built anew. Draft lengths change from step to step, so shapes come again.
#pragma once

#include "backend/graph/split_graph.h"
#include "backend/stream/compute_stream.h"

#include <memory>
#include <vector>

namespace spac {

class GraphCache {
  public:
    explicit GraphCache(ComputeStream & stream) : stream_(stream) {}

    // Returns the prepared form of a graph, and makes it if the graph is new. It stays valid until the next call. The
    // call waits for the stream before it frees a graph or staging that launches under way may read. Throws MemoryError
    // if the device has no memory for staging.
    SplitGraph & get(const ggml_cgraph * graph) { return get(graph, false); }
    // Returns the same with staging for all blocks, also for those of large graphs that were expected to stream.
    SplitGraph & get_staged(const ggml_cgraph * graph) { return get(graph, true); }
    // Makes staging for a graph with these blocks, which comes later. Throws as get() does.
    void reserve(std::vector<Block> & blocks);
    // Returns the staging on the device.
    ggml_backend_buffer_t scratch() const { return device_buffer_.get(); }
    // Returns true if copies from the staging on the host may be queued before the staging is written.
    bool host_pinned() const { return stream_.is_pinned(host_buffer_); }

  private:
    SplitGraph & get(const ggml_cgraph * graph, bool is_staged);
    bool         is_current(const SplitGraph & g) const;
    SplitGraph * find(const ggml_cgraph * graph);
    void         reserve(const StagingSize & size);
    void         make_numbers();
    InPlace      in_place() const;

    ComputeStream &         stream_;
    ggml_backend_buffer_ptr host_buffer_, device_buffer_, numbers_buffer_;
    ggml_context_ptr        numbers_ctx_;
    ggml_tensor *           numbers_ = nullptr; // the ids of lookups for the hand-off in place (InPlace)
    StagingSize             reserved_;
    std::vector<std::unique_ptr<SplitGraph>> graphs_;
    uint64_t                                 n_asked_ = 0;
    // The graphs of this stream that llama.cpp cut from its last graph, and those that were planned since. A device
    // that has slots alone gets a graph for each layer.
    size_t graphs_of_shape_ = 1, n_planned_ = 0;
};

} // namespace spac
