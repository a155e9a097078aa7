// Kernels that compute: their PTX, taken from the fat binary that a program registered, is translated to C++, compiled,
// and run on the CPU (../ptx).
#pragma once

#include <functional>
#include <string>

#include <vector_types.h>

namespace pretend {

// What a launch does. Translates the kernel when it is first met, which takes a second or more; what was made is kept
// in settings().execute. `fatbin`: what the program gave __cudaRegisterFatBinary. Null, and a misuse, where that fails.
std::function<void()> execution(const void * fatbin, const std::string & mangled, void ** arguments, dim3 grid,
                                dim3 block, size_t shared);

} // namespace pretend
