// One sequence of a llama context. `Context` knows what the context's memory holds of it, and evaluates more tokens.
#pragma once

#include "common.h"
#include "llama.h"

namespace spac {

// The llama context outlives it. The token list mirrors what the memory holds of the sequence: every method that
// changes one changes the other. The memory is not recurrent. One with a window has forgotten what was before it.
class Context {
  public:
    Context(llama_context * ctx, llama_seq_id seq_id) : ctx_(ctx), seq_id_(seq_id) {}
    static bool has_recurrent_model(const llama_context * ctx);

    llama_context *     get() const { return ctx_; }
    llama_seq_id        seq_id() const { return seq_id_; }
    const llama_vocab * vocab() const { return llama_model_get_vocab(llama_get_model(ctx_)); }
    int                 n_vocab() const { return llama_vocab_n_tokens(vocab()); }
    int                 n_past() const { return static_cast<int>(tokens_.size()); }

    void clear();
    // Drops everything from position `n` on, or all of it if the memory cannot go back there.
    void trim(int n);
    // Keeps what the memory has in common with `wanted`. Keeps nothing where a window has forgotten the past that the
    // next token would need.
    void keep_prefix(const llama_tokens & wanted);
    // Takes over a change of the memory that was made from outside. The memory holds the first tokens of `tokens`, and
    // tells how many.
    void adopt(llama_tokens tokens);

    // Decodes the next token and waits for the result. Returns false if that failed. Then the memory is as before.
    bool decode(llama_token token);

  private:
    // Returns true if a window has forgotten tokens that the one at `n` looks back to.
    bool has_forgotten(int n) const;

    llama_context * ctx_;
    llama_seq_id    seq_id_;
    llama_tokens    tokens_;
};

} // namespace spac
