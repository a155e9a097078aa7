// An image of a graph's tensors, which recognizes the graph when it is built anew.
//
// llama.cpp builds a graph whenever the shape of a batch changes, always in the same memory. So a graph of an earlier
// shape consists of the same bytes at the same addresses. Only its uid is new.
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

class GraphImage {
  public:
    explicit GraphImage(const ggml_cgraph * graph);

    // Returns true if the graph has these nodes, and if they and the tensors that they read are unchanged. Then kept
    // pointers to its tensors are valid again.
    bool matches(const ggml_cgraph * graph) const;

  private:
    void add(const ggml_tensor * t);

    int                              n_nodes_;
    std::vector<const ggml_tensor *> places_; // the nodes in their order, then other tensors that they read
    std::vector<ggml_tensor>         tensors_;
};

} // namespace spac
