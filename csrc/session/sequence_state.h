// Copies what a context's memory holds of a sequence to bytes that a file can keep, and back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

struct llama_context;

namespace spac {

// Returns the state of a sequence; nothing if the library cannot.
std::vector<uint8_t> sequence_state(llama_context * ctx, int sequence);
// Replaces what the memory holds of a sequence; with no bytes, it holds nothing. Returns false if the library refuses
// the state. Then it is unknown what the memory holds.
bool set_sequence_state(llama_context * ctx, int sequence, const uint8_t * state, size_t n_bytes);

} // namespace spac
