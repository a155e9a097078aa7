// The host's part of looking ahead (lookahead.h), when a block's ids and scores have arrived.
#pragma once

#include "backend/graph/split_graph.h"

namespace spac {

// Compares the prediction for this block with the experts that its router chose. Then it reports the experts that this
// block used, and those that the later block is predicted to use.
void look_ahead(SplitBlock & b, const Staging & s);

} // namespace spac
