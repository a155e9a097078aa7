#include "session/memory_state.h"

#include <new>

namespace spac {

namespace {

constexpr llama_seq_id sequence = 0;

llama_state_seq_flags flags_of(MemoryState::Part part) {
    return part == MemoryState::Part::passing ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

} // namespace

size_t MemoryState::size_of(llama_context * ctx, Part part) {
    return llama_state_seq_get_size_ext(ctx, sequence, flags_of(part));
}

MemoryState::MemoryState(llama_context * ctx, Part part) : part_(part) {
    const size_t size = size_of(ctx, part);
    bytes_.reset(new (std::nothrow) uint8_t[size]); // not cleared, because it may be gigabytes
    if (bytes_ != nullptr && llama_state_seq_get_data_ext(ctx, bytes_.get(), size, sequence, flags_of(part)) == size) {
        size_ = size;
    } else {
        bytes_.reset();
    }
}

bool MemoryState::restore(llama_context * ctx) const {
    return llama_state_seq_set_data_ext(ctx, bytes_.get(), size_, sequence, flags_of(part_)) == size_;
}

} // namespace spac
