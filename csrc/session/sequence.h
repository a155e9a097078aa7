// The tokens of a session. The last one is evaluated by the next verification. Those before it are the history.
//
// The target's memory holds a prefix of the history. Between steps it holds all of it, and less only after a prefill
// was stopped or a recurrent memory had to be cleared.
#pragma once

#include "session/context.h"
#include "session/session.h"

#include <cstddef>
#include <optional>
#include <vector>

namespace spac {

class Sequence {
  public:
    explicit Sequence(Context & target) : target_(target) {}

    // Throws InputError for tokens that do not fit into the target's context, or that its vocabulary does not have.
    // `images` are those that the tokens may hold; null: none.
    void check(const int32_t * tokens, size_t n_tokens, const ImagePrompt * images) const;
    // The same for tokens that the target's memory may hold, with images of earlier prompts.
    void check_held(const int32_t * tokens, size_t n_tokens) const;

    const llama_tokens & history() const { return history_; }
    int                  n_history() const { return static_cast<int>(history_.size()); }
    llama_token          last() const { return last_; }
    std::vector<int32_t> tokens() const; // the whole sequence
    // Returns true if there is a prompt, and thus a last token to continue from.
    bool has_prompt() const { return has_prompt_; }
    // Returns how many tokens a draft may have: it and the last token must fit into the context.
    int  draft_room() const { return target_.n_ctx() - n_history() - 1; }
    bool is_full() const { return n_history() >= target_.n_ctx(); }
    // Returns true if `tokens` begin with the history.
    bool is_start_of(const llama_tokens & tokens) const;

    // Returns how many tokens of the history the target's memory lacks.
    int n_pending() const { return n_history() - target_.n_past(); }
    // Adds the first of these tokens, at most `n_max` and up to the next image, to the batch.
    void add_pending(common_batch & batch, int n_max) const;
    // Returns the placeholder of the image that is evaluated next; nothing if text is.
    std::optional<llama_token> pending_image() const;
    bool                       has_images() const { return has_images_; }

    // Begins anew with these tokens. The target's memory holds a prefix of `history` already.
    void begin(llama_tokens history, llama_token last);
    // Makes what the target's memory holds the history, without a prompt.
    void begin_from_memory();
    // Drops the prompt, which can no longer be continued: a new one is needed.
    void drop_prompt() { has_prompt_ = false; }
    // Makes the accepted tokens part of the sequence. The last of them is the target's own and not in its memory yet.
    // Returns the reason to stop here, if there is one.
    StopReason append(const llama_tokens & accepted);
    // Drops what the target's memory holds beyond the history.
    void rewind() { target_.trim(n_history()); }
    void clear();

  private:
    void   check_size(size_t n_tokens) const;
    void   check_text(const int32_t * tokens, size_t index) const;
    size_t check_image(const int32_t * tokens, size_t n_tokens, const ImagePiece & image) const;

    Context &    target_;
    llama_tokens history_;
    llama_token  last_       = LLAMA_TOKEN_NULL;
    bool         has_prompt_ = false;
    bool         has_images_ = false;
};

} // namespace spac
