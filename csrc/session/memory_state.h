// What a context's memory holds of the sequence, as bytes on the host.
#pragma once

#include "llama.h"

#include <cstddef>
#include <cstdint>
#include <memory>

namespace spac {

class MemoryState {
  public:
    enum class Part {
        all,
        // What cannot go back by itself: recurrent states and windows. The rest has to be in the memory when this is
        // put back.
        passing,
    };

    MemoryState() = default;
    // Bytes that saving it takes now.
    static size_t size_of(llama_context * ctx, Part part);
    // Saves it; empty where the library cannot, or the host has no memory left.
    MemoryState(llama_context * ctx, Part part);

    bool   empty() const { return size_ == 0; }
    size_t size() const { return size_; }
    // Puts it back in the place of what is there. False: the library could not, and what the memory holds is unknown.
    bool restore(llama_context * ctx) const;

  private:
    std::shared_ptr<uint8_t[]> bytes_; // not written again: copies of a state share them
    size_t                     size_ = 0;
    Part                       part_ = Part::all;
};

} // namespace spac
