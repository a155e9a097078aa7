// A stack for recursions that are as deep as a text is long.
#pragma once

#include <cstddef>
#include <functional>

namespace spac {

constexpr size_t schema_stack = 256 << 20; // for what llama.cpp makes of a JSON schema, and for chat templates

// Returns how many bytes of this thread's stack are left.
size_t stack_bytes_left();

// Calls a function on a thread whose stack has this size, or on this one if so much of its stack is left. The host
// gives memory only for what the function touches. An exception of the function passes through. Returns false, and
// calls nothing, if there is no such stack.
bool on_stack(size_t bytes, const std::function<void()> & call);

} // namespace spac
