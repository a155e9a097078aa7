// Saved states of a sequence. A memory that cannot go back by itself goes back to one of them.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace spac {

// A copy of what a context's memory holds of a sequence, as bytes on the host.
class MemoryState {
  public:
    enum class Part {
        all,
        // Only what cannot go back by itself: recurrent states and windows. The memory has to hold the rest when this
        // is restored.
        passing,
    };

    MemoryState() = default;
    // Returns the bytes that saving takes now.
    static size_t size_of(llama_context * ctx, Part part, llama_seq_id sequence);
    // Saves the memory. The state is empty if the library cannot do that, or if the host has no memory left.
    MemoryState(llama_context * ctx, Part part, llama_seq_id sequence);
    // Takes a copy of a state's bytes, of all parts.
    MemoryState(const uint8_t * bytes, size_t size);

    bool   empty() const { return size_ == 0; }
    size_t size() const { return size_; }
    // Replaces what the memory holds of a sequence by this state. Returns false if the library failed. Then it is
    // unknown what the memory holds.
    bool restore(llama_context * ctx, llama_seq_id sequence) const;

  private:
    std::shared_ptr<uint8_t[]> bytes_; // not written again, so copies of a state share them
    size_t                     size_ = 0;
    Part                       part_ = Part::all;
};

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
