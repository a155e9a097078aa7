// Kernels: their names, their parameters, the effects of the few that do something, and the execution of all.
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
    std::atomic<uint64_t> *       launches = nullptr;
    std::array<size_t, max_cards> shared_limit; // by card

    Kernel() { shared_limit.fill(size_t{48} << 10); }
};

// Makes a kernel from its name.
Kernel describe(const char * mangled);

// Returns what the kernel does to memory, with the arguments of a launch; null if it does nothing. The router's kernels
// write ids that are distinct for a token and differ between tokens and launches.
std::function<void()> work_of(const Kernel & kernel, void ** arguments, dim3 grid);

// Returns the function that a launch runs, where kernels compute. Their PTX comes from the fat binary that a program
// registered. It is translated to C++, compiled, and run on the CPU (../ptx). A kernel is translated at its first
// launch, which takes a second or more, and kept in settings().execute. `fatbin` is what the program gave to
// __cudaRegisterFatBinary. A failure returns null and notes a misuse.
std::function<void()> execution(const void * fatbin, const std::string & mangled, void ** arguments, dim3 grid,
                                dim3 block, size_t shared);

} // namespace pretend
