// One llama context used as one growing sequence: what its memory holds, and evaluating more.
#pragma once

#include "common.h"
#include "llama.h"

#include <cstdint>
#include <vector>

namespace spac {

class Interrupt;

// Owns nothing; the context outlives it. The token list mirrors the context's memory (sequence 0) exactly: every method
// that changes one changes the other.
class Context {
  public:
    // The llama_context behind `ctx`. Throws InputError when it is none or its model cannot generate.
    static llama_context * checked_target(void * ctx);

    // `role` names the context in messages: "target" or "draft".
    Context(llama_context * ctx, const char * role);

    llama_context *     get() const { return ctx_; }
    const llama_model * model() const { return llama_get_model(ctx_); }
    const llama_vocab * vocab() const { return llama_model_get_vocab(model()); }
    int                 n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int                 n_ctx() const { return static_cast<int>(llama_n_ctx_seq(ctx_)); }
    int                 n_batch() const { return static_cast<int>(llama_n_batch(ctx_)); }

    const llama_tokens & tokens() const { return tokens_; }
    int                  n_past() const { return static_cast<int>(tokens_.size()); }

    void clear();
    // Drops everything from position `n` on. A memory that cannot do that (recurrent state) is cleared: n_past() is
    // then 0, not n.
    void trim(int n);
    // Keeps what the memory has in common with the first `n_max` of `wanted`, also where a sliding window has forgotten
    // the past that the next token would need.
    void keep_prefix(const llama_tokens & wanted, int n_max);
    // The memory was changed from outside (by common's own decoding on the draft context): it holds the first tokens of
    // `tokens`, as many as it says.
    void adopt(llama_tokens tokens);

    // Decodes the batch, which continues the sequence, and waits for the result. If it was stopped or failed, the
    // memory is as before, and the reason is thrown (Cancelled, MemoryError, DeviceError).
    void decode(common_batch & batch, Interrupt & interrupt);

  private:
    llama_context * ctx_;
    const char *    role_;
    llama_tokens    tokens_;
};

// How many tokens `a` and `b` have in common at the start, at most `n_max`.
int common_prefix(const llama_tokens & a, const llama_tokens & b, int n_max);

} // namespace spac
