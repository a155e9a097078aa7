// The experts that a block's rows use, and those of them that are not resident.
#pragma once

#include "backend/graph/split_graph.h"
#include "core/mask.h"

#include <cstdint>
#include <vector>

namespace spac {

struct Missing {
    std::vector<char>    used;       // [n_expert]
    std::vector<int32_t> experts;    // not resident, those with the most rows first
    std::vector<int>     rows;       // of each of them
    int                  n_resident; // used and resident
};

// Returns the missing experts of an execution whose ids are in staging. Without a mask, no expert is resident.
Missing missing_of(const SplitBlock & b, const Staging & s, const Mask * mask);

} // namespace spac
