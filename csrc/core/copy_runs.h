// Finds where the experts of a layer come from when all of them are wanted side by side on the device. Those with a
// slot are copied there, the others come over the link, neighbours in one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spac {

// Neighbouring experts that one copy moves.
struct CopyRun {
    int first;
    int count;
    int slot; // slot of the first, which the others' follow; -1: over the link
};

// Returns the runs that make up experts 0, 1, … in order. `slot_of[e]` is -1 if an expert has none. An expert has
// `expert_bytes` of the weight that is copied. The link moves `copy_bytes` in the time that one more copy takes. So
// residents come over the link too where that is no slower than the copies that it saves.
std::vector<CopyRun> copy_runs(const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes);

} // namespace spac
