// Files of slots (POST /slots/ID?action=save and restore) are plain files, and a state that comes from one has the
// positions of its tokens. The linker's --wrap leads the server's calls here (csrc/CMakeLists.txt).
#include "llama.h"

#include <filesystem>
#include <system_error>

namespace {

// A pipe would keep the loop for ever. A file that is not there is a plain one.
bool is_plain(const char * path) {
    std::error_code ignored;
    const auto      kind = std::filesystem::status(path, ignored).type();
    return kind == std::filesystem::file_type::regular || kind == std::filesystem::file_type::not_found;
}

bool has_positions(llama_context * ctx, llama_seq_id sequence, size_t n_tokens) {
    const auto memory = llama_get_memory(ctx);
    const auto last   = llama_memory_seq_pos_max(memory, sequence);
    return last < 0 || (static_cast<size_t>(last) < n_tokens && llama_memory_seq_pos_min(memory, sequence) >= 0);
}

} // namespace

extern "C" {
size_t __real_llama_state_seq_load_file(llama_context * ctx, const char * path, llama_seq_id sequence,
                                        llama_token * tokens, size_t most, size_t * n_tokens);
size_t __real_llama_state_seq_save_file(llama_context * ctx, const char * path, llama_seq_id sequence,
                                        const llama_token * tokens, size_t n_tokens);

size_t __wrap_llama_state_seq_load_file(llama_context * ctx, const char * path, llama_seq_id sequence,
                                        llama_token * tokens, size_t most, size_t * n_tokens) {
    if (!is_plain(path)) {
        return 0;
    }
    const size_t n = __real_llama_state_seq_load_file(ctx, path, sequence, tokens, most, n_tokens);
    if (n != 0 && tokens != nullptr && !has_positions(ctx, sequence, *n_tokens)) {
        llama_memory_seq_rm(llama_get_memory(ctx), sequence, -1, -1);
        return 0;
    }
    return n;
}

size_t __wrap_llama_state_seq_save_file(llama_context * ctx, const char * path, llama_seq_id sequence,
                                        const llama_token * tokens, size_t n_tokens) {
    return is_plain(path) ? __real_llama_state_seq_save_file(ctx, path, sequence, tokens, n_tokens) : 0;
}
}
