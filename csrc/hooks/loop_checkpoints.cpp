// Makes the checkpoints of llama.cpp's server exact for models with a sliding window or a state.
//
// The server goes back to a checkpoint's last token and evaluates it again. The window of that token may lack its first
// place: llama.cpp keeps only what the token after it sees, and gives other places to other slots. So a checkpoint of a
// window is noted as if it ended two places later. Then the server goes on behind its last token, and takes it for
// prompts that are longer.
//
// The server keeps a checkpoint that has one token more than a new prompt shares with the last one, and a later prompt
// may go back to it. A state cannot lose that token. So a checkpoint of a state is noted as if it ended one place
// later.
//
// The linker's --wrap leads the server's notes here (csrc/CMakeLists.txt).
#include "hooks/loop_hooks.h"

#include "../src/llama-model.h"
#include "common.h"

#include <limits>

namespace spac {

namespace {

// Returns true if a memory that holds the places from `first` to `last` has all that the token after them sees.
bool is_whole(const llama_hparams & hparams, llama_pos first, llama_pos last) {
    return first == 0 ||
           (first > 0 && llama_hparams::is_masked_swa(hparams.n_swa, hparams.swa_type, first - 1, last + 1));
}

} // namespace

} // namespace spac

extern "C" {
void __real__ZN24common_prompt_checkpoint10update_posElii(common_prompt_checkpoint * self, int64_t n_tokens,
                                                          llama_pos first, llama_pos last);

void __wrap__ZN24common_prompt_checkpoint10update_posElii(common_prompt_checkpoint * self, int64_t n_tokens,
                                                          llama_pos first, llama_pos last) {
    const auto * const hooks = spac::LoopHooks::current();
    // A checkpoint of a draft belongs to no task. It is exact, because nothing else runs until it is used.
    const bool is_kept = hooks != nullptr && self->id_task >= 0;
    if (is_kept && hooks->has_state()) {
        ++last;
    } else if (is_kept && hooks->has_window()) {
        const bool whole = spac::is_whole(llama_get_model(hooks->target())->hparams, first, last);
        first            = whole ? 0 : first;
        last             = whole ? last + 2 : std::numeric_limits<llama_pos>::max(); // the server never uses it
    }
    __real__ZN24common_prompt_checkpoint10update_posElii(self, n_tokens, first, last);
}
}
