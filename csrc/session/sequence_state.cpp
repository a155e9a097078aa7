#include "session/sequence_state.h"

#include "llama.h"

namespace spac {

std::vector<uint8_t> sequence_state(llama_context * ctx, int sequence) {
    std::vector<uint8_t> state(llama_state_seq_get_size(ctx, sequence));
    if (llama_state_seq_get_data(ctx, state.data(), state.size(), sequence) != state.size()) {
        state.clear();
    }
    return state;
}

bool set_sequence_state(llama_context * ctx, int sequence, const uint8_t * state, size_t n_bytes) {
    llama_memory_seq_rm(llama_get_memory(ctx), sequence, -1, -1);
    return n_bytes == 0 || llama_state_seq_set_data(ctx, state, n_bytes, sequence) == n_bytes;
}

} // namespace spac
