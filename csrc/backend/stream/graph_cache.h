// The prepared graphs of one stream, and the staging memory that they share.
//
// It owns both: a graph's tensors point into the staging, so that a larger one empties the cache. A graph is found by
// its uid, or, built anew, by what it is made of: draft lengths change from step to step, and come again.
#pragma once

#include "backend/graph/split_graph.h"
#include "backend/stream/compute_stream.h"

#include <memory>
#include <vector>

namespace spac {

class GraphCache {
  public:
    explicit GraphCache(ComputeStream & stream) : stream_(stream) {}

    // The prepared form of a graph, made when it is new; stays until the next call. Waits for the stream where a graph
    // or staging goes that launches under way may read. Throws MemoryError when the device has no room for staging.
    SplitGraph & get(const ggml_cgraph * graph);
    // Makes staging for graphs with these blocks now; get() does it for any other. Errors are its.
    void reserve(const std::vector<Block> & blocks);
    // The staging on the device.
    ggml_backend_buffer_t scratch() const { return device_buffer_.get(); }
    // Whether copies from the staging on the host may be queued before it is written.
    bool host_pinned() const { return stream_.is_pinned(host_buffer_); }

  private:
    bool         is_current(const SplitGraph & g) const;
    SplitGraph * find(const ggml_cgraph * graph);
    void         reserve(const StagingSize & size);
    void         make_numbers();
    InPlace      in_place() const;

    ComputeStream &                          stream_;
    ggml_backend_buffer_ptr                  host_buffer_, device_buffer_, numbers_buffer_;
    ggml_context_ptr                         numbers_ctx_;
    ggml_tensor *                            numbers_ = nullptr; // what hand-overs in place look up (InPlace)
    StagingSize                              reserved_;
    std::vector<std::unique_ptr<SplitGraph>> graphs_;
    uint64_t                                 n_asked_ = 0;
};

} // namespace spac
