// What the host does to look ahead (lookahead.h), when a block's ids and scores have arrived.
#pragma once

#include "backend/graph/split_graph.h"

namespace spac {

// Compares what was foreseen of this block with what its router chose; says what it used, and what the block that is
// looked ahead to will use.
void look_ahead(SplitBlock & b, const Staging & s);

} // namespace spac
