// One llama context used as one growing sequence: what its memory holds, and evaluating more.
#pragma once

#include "common.h"
#include "llama.h"
#include "session/checkpoints.h"

#include <cstdint>
#include <vector>

namespace spac {

class Interrupt;

// What a memory held once: enough to go on from there later.
struct Remembered {
    llama_tokens tokens;
    MemoryState  state;
    Checkpoints  checkpoints;
    bool         goes_back = false; // to any place; else to its end and its checkpoints

    // How many of the first tokens of `wanted` it would bring.
    int    usable(const llama_tokens & wanted) const;
    size_t bytes() const { return state.size() + checkpoints.bytes(); }
};

// Owns nothing but its checkpoints; the context outlives it. The token list mirrors the context's memory (sequence 0)
// exactly: every method that changes one changes the other.
//
// Some memories cannot go back as they like. A recurrent one has a state in place of the past, of which it keeps a few
// versions (`n_rs_seq`), each of one token of the last batch: it takes tokens of that batch back, once. One with a
// window has forgotten what was before it. These go back to a checkpoint, and what lies behind it is evaluated anew.
class Context {
  public:
    // The llama_context behind `ctx`. Throws InputError when it is none or its model cannot generate.
    static llama_context * checked_target(void * ctx);

    // `role` names the context in messages: "target" or "draft". `is_recurrent`: its memory is a state in place of the
    // past, as a target's is if has_recurrent_model(). Drafts' never are (Speculator sees to it): what drafts for a
    // recurrent model from the same file may have attention only.
    Context(llama_context * ctx, const char * role, bool is_recurrent = false);
    static bool has_recurrent_model(const llama_context * ctx);

    llama_context *     get() const { return ctx_; }
    const llama_model * model() const { return llama_get_model(ctx_); }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model()); }
    int                 n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int                 n_ctx() const { return static_cast<int>(llama_n_ctx_seq(ctx_)); }
    int                 n_batch() const { return static_cast<int>(llama_n_batch(ctx_)); }
    // The most rows of logits that one batch may ask for (n_outputs_max).
    int n_rows() const;
    // Throws InputError if a batch of `n_tokens` that wants logits for `n_wanted` of them asks for more rows than that:
    // llama.cpp would end the process. A context that makes embeddings has a row for every token.
    void check_rows(int n_tokens, int n_wanted) const;

    const llama_tokens & tokens() const { return tokens_; }
    int                  n_past() const { return static_cast<int>(tokens_.size()); }

    void clear();
    // Drops everything from position `n` on. A memory that cannot do that goes back to its last checkpoint before, or
    // is cleared: n_past() is then less than n.
    void trim(int n);
    // Keeps what the memory has in common with the first `n_max` of `wanted`, or less of it, as trim() does; also where
    // a sliding window has forgotten the past that the next token would need.
    void keep_prefix(const llama_tokens & wanted, int n_max);
    // How many tokens keep_prefix() would keep.
    int usable(const llama_tokens & wanted, int n_max) const;
    // The memory was changed from outside (by common's own decoding on the draft context): it holds the first tokens of
    // `tokens`, as many as it says.
    void adopt(llama_tokens tokens);

    // At most so many checkpoints from now on; 0: none. Those that are there are dropped.
    void keep_checkpoints(int n_max) { checkpoints_ = Checkpoints(n_max); }
    // Whether one after `n` tokens would be worth it: the memory is recurrent or has a window (that is not kept whole:
    // whoever makes the context knows), and the last one is no closer than `step` tokens.
    bool wants_checkpoint(int n, int step) const;
    // Makes one here if it is wanted.
    void checkpoint(int step);

    // Everything, to go on from later. Empty where there is nothing, or the host has no memory for it.
    Remembered remember() const;
    size_t     size_to_remember() const;
    // In the place of what the memory holds. Where that fails, the memory is cleared.
    void recall(Remembered past);

    // Decodes the batch, which continues the sequence, and waits for the result. If it was stopped or failed, the
    // memory is as before, or has gone further back, as trim() does; the reason is thrown (Cancelled, MemoryError,
    // DeviceError).
    void decode(common_batch & batch, Interrupt & interrupt);

  private:
    // Whether a window has forgotten tokens that the one at `n` looks back to.
    bool has_forgotten(int n) const;
    bool can_go_back(int n) const;
    void go_back(int n);
    void fall_back(int n);

    llama_context * ctx_;
    const char *    role_;
    bool            is_recurrent_;
    int             n_versions_ = 0; // of the state: tokens that can be taken back now
    llama_tokens    tokens_;
    Checkpoints     checkpoints_;
};

// How many tokens `a` and `b` have in common at the start, at most `n_max`.
int common_prefix(const llama_tokens & a, const llama_tokens & b, int n_max);

} // namespace spac
