// The size of a context's graphs, after the context was made.
//
// llama.cpp plans the compute buffers of a context for graphs of n_ubatch tokens. Larger graphs take fewer passes of
// the experts for a prompt, and more memory.
#pragma once

#include <cstddef>
#include <map>
#include <string>

struct llama_context;

namespace spac {

// Returns the bytes that compute buffers for graphs of `n_tokens` take of each device, by its name. The context's
// memory and buffers stay as they are. Throws MemoryError if the buffers cannot be allocated again.
std::map<std::string, size_t> graph_bytes(llama_context * ctx, int n_tokens);

// Makes compute buffers for graphs of `n_tokens`, at most n_batch, in place of those that the context has. The
// context's memory stays. Throws MemoryError if the device has no memory for them; then the size is the old one.
void set_graph_tokens(llama_context * ctx, int n_tokens);

} // namespace spac
