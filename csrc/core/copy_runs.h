// Where the experts of a layer come from when all of them are wanted side by side on the device: those with a slot are
// copied there, the others come over the link, neighbours in one copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spac {

// Neighbouring experts that one copy moves.
struct CopyRun {
    int first;
    int count;
    int slot; // of the first, the others' follow it; -1: over the link
};

// The runs that make up experts 0, 1, … in order; `slot_of[e]`: -1 where an expert has none. An expert has
// `expert_bytes` of the weight that is copied, and in the time that a copy of its own takes the link moves
// `copy_bytes`: residents come over the link too where that is no slower than the copies that it saves.
std::vector<CopyRun> copy_runs(const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes);

} // namespace spac
