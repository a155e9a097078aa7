// Sequences that a session has left, kept in host memory. A prompt that returns to one continues from it, without
// evaluating its tokens again.
#pragma once

#include "session/context.h"
#include "session/session.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>

namespace spac {

class Speculator;

class PromptCache {
  public:
    // `max_bytes` limits all that is kept; 0 keeps nothing.
    explicit PromptCache(size_t max_bytes) : max_bytes_(max_bytes) {}

    // Prepares the memories before the session continues with `wanted`. Keeps what they hold if most of it would be
    // lost, and restores a sequence that has more in common with `wanted`. Returns true if it restored one: the caller
    // then has to call the speculator's cut().
    bool exchange(const llama_tokens & wanted, Context & target, Speculator * speculator);
    void clear() { entries_.clear(); }

    Session::Cached stats() const;

  private:
    struct Entry {
        Remembered target, draft;

        size_t bytes() const { return target.bytes() + draft.bytes(); }
    };
    using Entries = std::list<Entry>;

    std::optional<Entry> take(const llama_tokens & wanted, int n_at_least);
    void                 keep(const Context & target, const Context * draft);
    bool                 make_room(size_t n_bytes);
    size_t               bytes() const;

    size_t  max_bytes_;
    Entries entries_; // the most recently used one first
    int     n_stored_ = 0, n_recalled_ = 0;
};

} // namespace spac
