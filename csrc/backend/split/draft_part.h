// A block in a draft pass: its chain on the low-bit copies of the experts, wholly on the device (draft_copies.h).
#pragma once

#include "backend/experts/draft_copies.h"
#include "backend/graph/split_graph.h"

#include <memory>

namespace spac {

// Makes the nodes of a block's draft pass unless they exist for these copies. Returns false if they have to be made,
// and `can_replace` is false because launches under way may read the older ones. Throws DeviceError if the block has a
// weight without a copy.
bool prepare_draft(SplitBlock & b, const std::shared_ptr<const DraftCopies> & copies, bool can_replace);

} // namespace spac
