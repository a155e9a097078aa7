// Kernels that compute. Their PTX comes from the fat binary that a program registered. It is translated to C++,
// compiled, and run on the CPU (../ptx).
#pragma once

#include <functional>
#include <string>

#include <vector_types.h>

namespace pretend {

// Returns the function that a launch runs. A kernel is translated at its first launch, which takes a second or more,
// and kept in settings().execute. `fatbin` is what the program gave to __cudaRegisterFatBinary. A failure returns null
// and notes a misuse.
std::function<void()> execution(const void * fatbin, const std::string & mangled, void ** arguments, dim3 grid,
                                dim3 block, size_t shared);

} // namespace pretend
