// The interface of a short head: the last product of a context's graph is computed for some tokens of the vocabulary
// only. The logits of all others are -inf, so the ids stay what they are. A draft reads its head for every token, and
// the head of a small model with a large vocabulary is a large part of it.
//
// This header is part of the backend's public interface, and names no ggml type. stream_head.h implements it.
#pragma once

#include "core/home_process.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace spac {

// The head of one context. Only the thread that uses the context may use it, between decodes.
class ShortHead {
  public:
    virtual ~ShortHead() = default;

    const HomeProcess home;

    // Return the number of tokens that the head knows, the number of all, and the bytes of all rows. All are 0 before
    // the context is made, and if the head cannot be shortened: its graphs do not run wholly on the SPAC device,
    // another node follows the head, or the vocabulary is too small.
    virtual int    n_rows() const  = 0;
    virtual int    n_vocab() const = 0;
    virtual size_t bytes() const   = 0;

    // Switches whether decodes with logits of few tokens use the short head from now on. It is off at first.
    virtual void set_on(bool on) = 0;
    virtual bool on() const      = 0;

    // Notes tokens of the text. The head learns those that it does not know, in place of those that it learned first.
    virtual void note(const int32_t * tokens, size_t n) = 0;
    // Return how many tokens were noted so far, and how many of them the head did not know.
    virtual uint64_t n_noted() const   = 0;
    virtual uint64_t n_learned() const = 0;
};

// Returns a head of `n_rows` tokens, for decodes with logits of up to `n_tokens` tokens. It knows the first ones of the
// vocabulary, which are the frequent ones where the tokenizer has merged pairs by their frequency, and the tokens that
// it notes: up to an eighth of the rows.
std::shared_ptr<ShortHead> new_short_head(int n_rows, int n_tokens);

// A scope that binds a head to a context: the one that is made on this thread while the scope lives.
class ShortHeadScope {
  public:
    explicit ShortHeadScope(std::shared_ptr<ShortHead> head);
    ~ShortHeadScope();
    ShortHeadScope(const ShortHeadScope &)             = delete;
    ShortHeadScope & operator=(const ShortHeadScope &) = delete;

  private:
    std::shared_ptr<ShortHead> outer_;
};

} // namespace spac
