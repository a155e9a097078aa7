// Where the tap goes in: the tensors of a graph that enter FFNs.
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

// What enters the FFNs of a graph, [width, n_tokens] F32 each, in the order in which they are computed; every FFN once,
// however many matrices read it. Found by dataflow alone: the one tensor that the matrices before an activation are
// multiplied with, when what comes of it is multiplied with a matrix again; and the one that a layer's experts read.
std::vector<ggml_tensor *> find_ffn_inputs(const ggml_cgraph * graph);

} // namespace spac
