// One sequence of a llama context. `Context` knows what the context's memory holds of it, and evaluates more tokens.
#pragma once

#include "common.h"
#include "llama.h"
#include "session/checkpoints.h"
#include "session/projector.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace spac {

class Interrupt;

// A copy of what a memory held. The sequence can continue from it later.
struct Remembered {
    llama_tokens tokens;
    MemoryState  state;
    Checkpoints  checkpoints;
    bool         goes_back = false; // true: to any place; false: to its end and its checkpoints

    // Returns how many of the first tokens of `wanted` it would restore.
    int    usable(const llama_tokens & wanted) const;
    size_t bytes() const { return state.size() + checkpoints.bytes(); }
};

// Owns only its checkpoints; the llama context outlives it. The token list mirrors what the memory holds of
// the sequence: every method that changes one changes the other.
//
// Some memories cannot go back to any place. A recurrent one has a state in place of the past. It keeps a few versions
// of the state (`n_rs_seq`), each of one token of the last batch. So it takes tokens of that batch back, once. A memory
// with a window has forgotten what was before the window. Both go back to a checkpoint, and the tokens behind it are
// evaluated again.
class Context {
  public:
    // Returns the llama_context behind `ctx`. Throws InputError if it is none or its model cannot generate.
    static llama_context * checked_target(void * ctx);

    // `role` names the context in messages: "target" or "draft". With `is_recurrent`, its memory is a state in place of
    // the past. A target's is if has_recurrent_model(). A draft's never is, which Speculator ensures: a draft from a
    // recurrent model's file may have attention only.
    Context(llama_context * ctx, const char * role, bool is_recurrent = false);
    // A sequence beside others in the same llama context. Its memory is not recurrent.
    Context(llama_context * ctx, const char * role, llama_seq_id seq_id);
    static bool has_recurrent_model(const llama_context * ctx);

    llama_context *     get() const { return ctx_; }
    llama_seq_id        seq_id() const { return seq_id_; }
    const llama_model * model() const { return llama_get_model(ctx_); }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model()); }
    int                 n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int                 n_ctx() const { return static_cast<int>(llama_n_ctx_seq(ctx_)); }
    int                 n_ubatch() const { return static_cast<int>(llama_n_ubatch(ctx_)); }
    int                 n_batch() const { return static_cast<int>(llama_n_batch(ctx_)); }
    // Returns the most tokens that one decode may have. With a window, they are those of one graph: llama.cpp finds the
    // cells for all graphs of a decode before it computes the first one, and what a later graph drops from the window
    // is missing there.
    int n_decode() const { return llama_model_n_swa(model()) > 0 ? std::min(n_ubatch(), n_batch()) : n_batch(); }
    // Sets the projector, which knows the images among the tokens; null: there are none.
    void              set_projector(const Projector * projector) { projector_ = projector; }
    const Projector * projector() const { return projector_; }
    // Returns the position of the token after the first `n` tokens.
    int position(int n) const;
    // Returns how many rows of logits one batch may ask for (n_outputs_max).
    int n_rows() const;
    // Throws InputError if a batch of `n_tokens` that wants logits for `n_wanted` of them asks for more rows than that:
    // llama.cpp would end the process. A context that makes embeddings has a row for every token.
    void check_rows(int n_tokens, int n_wanted) const;

    // Looks at the logit in `row` by which `token` was chosen. If it is no finite number, the memory is believed no
    // more: nothing of it is kept for a later prompt, and clear() overwrites its data. A masked cell with NaN would
    // make every later result NaN.
    void note_logit(int row, llama_token token);
    bool has_overflowed() const { return overflowed_; }

    const llama_tokens & tokens() const { return tokens_; }
    int                  n_past() const { return static_cast<int>(tokens_.size()); }

    void clear();
    // Drops everything from position `n` on. A memory that cannot do that goes back to its last checkpoint before `n`,
    // or is cleared. Then n_past() is less than `n`.
    void trim(int n);
    // Keeps what the memory has in common with the first `n_max` of `wanted`, or less of it, as trim() does. It also
    // keeps less where a sliding window has forgotten the past that the next token would need.
    void keep_prefix(const llama_tokens & wanted, int n_max);
    // Returns how many tokens keep_prefix() would keep.
    int usable(const llama_tokens & wanted, int n_max) const;
    // Takes over a change of the memory that was made from outside (by common's own decoding on the draft context). The
    // memory holds the first tokens of `tokens`, and tells how many.
    void adopt(llama_tokens tokens);

    // Sets how many checkpoints are kept at most from now on, 0 for none. Drops those that are there.
    void keep_checkpoints(int n_max) { checkpoints_ = Checkpoints(n_max); }
    // Returns true if a checkpoint after `n` tokens would be worth it: the memory is recurrent or has a window, and the
    // last checkpoint is at least `step` tokens before. A window that is kept whole needs none; whoever makes the
    // context knows that.
    bool wants_checkpoint(int n, int step) const;
    // Makes a checkpoint here if it is wanted.
    void checkpoint(int step);

    // Returns a copy of everything, to continue from it later. It is empty if there is nothing, or if the host has no
    // memory for it.
    Remembered remember() const;
    size_t     size_to_remember() const;
    // Replaces what the memory holds by `past`. Clears the memory if that fails.
    void recall(Remembered past);

    // Adds `last` and the draft behind it, which continue the sequence, to the batch. Each wants a row of logits.
    void add_window(common_batch & batch, llama_token last, const llama_tokens & draft) const;
    // Decodes the batch, which continues the sequence, and waits for the result. If it was stopped or failed, throws
    // the reason (Cancelled, MemoryError, DeviceError). Then the memory is as before, or has gone further back, as
    // trim() does.
    void decode(common_batch & batch, Interrupt & interrupt);
    // Encodes an image and decodes it, in the same way.
    void decode(const ImagePiece & image, int32_t placeholder, Interrupt & interrupt);

  private:
    // Returns true if a window has forgotten tokens that the one at `n` looks back to.
    bool has_forgotten(int n) const;
    bool can_go_back(int n) const;
    void go_back(int n);
    void fall_back(int n);
    // Drops what a decode that failed may have left behind in the memory.
    void take_back();
    // Throws the reason of a decode's status, which is not 0.
    [[noreturn]] void raise(int status, int n_tokens, Interrupt & interrupt) const;

    llama_context *   ctx_;
    const char *      role_;
    bool              is_recurrent_;
    bool              shares_     = false; // true: the llama context has other sequences
    bool              overflowed_ = false; // a logit was no finite number
    llama_seq_id      seq_id_     = 0;
    const Projector * projector_  = nullptr;
    int               n_versions_ = 0; // versions of the state: tokens that can be taken back now
    llama_tokens      tokens_;
    Checkpoints       checkpoints_;
};

// Returns true if the sequences of a context share the cells of its memory.
bool shares_cells(const llama_context * ctx);

// Returns how many tokens `a` and `b` have in common at the start, at most `n_max`.
int common_prefix(const llama_tokens & a, const llama_tokens & b, int n_max);

} // namespace spac
