// Places of a sequence to which a memory can go back that cannot go back by itself.
#pragma once

#include "session/memory_state.h"

#include <cstddef>
#include <vector>

namespace spac {

struct Checkpoint {
    int         n_tokens = 0; // of the sequence, from its start
    MemoryState state;
};

class Checkpoints {
  public:
    explicit Checkpoints(int n_max = 0) : n_max_(n_max) {}

    // Where there are `n_max` already, the one goes that is closest behind another.
    void add(Checkpoint checkpoint);
    // The last one at or before `n_tokens`, or null.
    const Checkpoint * before(int n_tokens) const;
    // The sequence goes on otherwise from there.
    void cut(int n_tokens);
    void clear() { list_.clear(); }

    bool   is_on() const { return n_max_ > 0; }
    size_t bytes() const;
    int    last() const { return list_.empty() ? 0 : list_.back().n_tokens; }

  private:
    int                     n_max_;
    std::vector<Checkpoint> list_; // by n_tokens, ascending
};

} // namespace spac
