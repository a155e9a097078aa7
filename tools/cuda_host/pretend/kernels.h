// Kernels: their names, what they take, and the few that do something.
#pragma once

#include "counts.h"
#include "memory.h"

#include <functional>
#include <string>
#include <vector>

#include <vector_types.h>

namespace pretend {

struct Kernel {
    std::string      mangled, name; // the name without its parameters
    std::vector<int> pointers;      // which parameters are pointers
    size_t           shared_limit = size_t{48} << 10;
    KernelCount *    counter      = nullptr;
};

// Makes what the name tells.
Kernel describe(const char * mangled);

// What the kernel does to memory, with the arguments of a launch; null: nothing. The router's write ids that are
// distinct for a token and differ between tokens and launches.
std::function<void()> work_of(const Kernel & kernel, void ** arguments, dim3 grid);

} // namespace pretend
