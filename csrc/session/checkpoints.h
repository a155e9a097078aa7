// Saved states of a sequence. A memory that cannot go back by itself goes back to one of them.
#pragma once

#include "session/memory_state.h"

#include <cstddef>
#include <vector>

namespace spac {

struct Checkpoint {
    int         n_tokens = 0; // length of the sequence up to here
    MemoryState state;
};

class Checkpoints {
  public:
    explicit Checkpoints(int n_max = 0) : n_max_(n_max) {}

    // Adds a checkpoint. If there are `n_max` already, removes the one that is closest behind another one.
    void add(Checkpoint checkpoint);
    // Returns the last checkpoint at or before `n_tokens`, or null.
    const Checkpoint * before(int n_tokens) const;
    // Drops the checkpoints behind `n_tokens`, where the sequence continues differently.
    void cut(int n_tokens);
    void clear() { list_.clear(); }

    bool   is_on() const { return n_max_ > 0; }
    size_t bytes() const;
    int    last() const { return list_.empty() ? 0 : list_.back().n_tokens; }

  private:
    int                     n_max_;
    std::vector<Checkpoint> list_; // in ascending order of n_tokens
};

} // namespace spac
