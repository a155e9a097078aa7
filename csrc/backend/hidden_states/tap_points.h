// The finder of a tap's points: the tensors of a graph that enter FFNs.
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

// Returns the tensors that enter a graph's FFNs, [width, n_tokens] F32 each, in the order in which they are computed.
// Every FFN appears once, even if several matrices read the tensor. The search uses dataflow alone. It finds the one
// tensor that the matrices before an activation are multiplied with, if the result is multiplied with a matrix again.
// It also finds the tensor that a layer's experts read.
std::vector<ggml_tensor *> find_ffn_inputs(const ggml_cgraph * graph);

} // namespace spac
