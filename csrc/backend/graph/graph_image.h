// What a graph was made of, to recognize it when it is built anew.
//
// llama.cpp builds a graph whenever the shape of a batch changes, always in the same memory, so that one of a shape
// that was there before consists of the same tensors at the same places, down to the last byte; its uid alone is new.
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

class GraphImage {
  public:
    explicit GraphImage(const ggml_cgraph * graph);

    // Whether the graph has these nodes, and they and what they read are as they were: pointers to its tensors that
    // somebody kept hold again.
    bool matches(const ggml_cgraph * graph) const;

  private:
    void add(const ggml_tensor * t);

    int                              n_nodes_;
    std::vector<const ggml_tensor *> places_; // the nodes in their order, then what else they read
    std::vector<ggml_tensor>         tensors_;
};

} // namespace spac
