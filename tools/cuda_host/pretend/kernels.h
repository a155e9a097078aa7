// Kernels: their names, their parameters, and the effects of the few that do something.
#pragma once

#include "counts.h"
#include "memory.h"
#include "settings.h"

#include <array>
#include <functional>
#include <string>
#include <vector>

#include <vector_types.h>

namespace pretend {

struct Kernel {
    std::string                   mangled, name; // `name` is the name without its parameters
    std::vector<int>              pointers;      // indices of the parameters that are pointers
    KernelCount *                 counter = nullptr;
    std::array<size_t, max_cards> shared_limit; // by card

    Kernel() { shared_limit.fill(size_t{48} << 10); }
};

// Makes a kernel from its name.
Kernel describe(const char * mangled);

// Returns what the kernel does to memory, with the arguments of a launch; null if it does nothing. The router's kernels
// write ids that are distinct for a token and differ between tokens and launches.
std::function<void()> work_of(const Kernel & kernel, void ** arguments, dim3 grid);

} // namespace pretend
