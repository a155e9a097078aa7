#include "session/memory_state.h"

#include <algorithm>
#include <new>

namespace spac {

namespace {

llama_state_seq_flags flags_of(MemoryState::Part part) {
    return part == MemoryState::Part::passing ? LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY : LLAMA_STATE_SEQ_FLAGS_NONE;
}

} // namespace

size_t MemoryState::size_of(llama_context * ctx, Part part, llama_seq_id sequence) {
    return llama_state_seq_get_size_ext(ctx, sequence, flags_of(part));
}

MemoryState::MemoryState(llama_context * ctx, Part part, llama_seq_id sequence) : part_(part) {
    const size_t size = size_of(ctx, part, sequence);
    bytes_.reset(new (std::nothrow) uint8_t[size]); // not cleared, because it may be gigabytes
    if (bytes_ != nullptr && llama_state_seq_get_data_ext(ctx, bytes_.get(), size, sequence, flags_of(part)) == size) {
        size_ = size;
    } else {
        bytes_.reset();
    }
}

MemoryState::MemoryState(const uint8_t * bytes, size_t size) : bytes_(new uint8_t[size]), size_(size) {
    std::copy_n(bytes, size, bytes_.get());
}

bool MemoryState::restore(llama_context * ctx, llama_seq_id sequence) const {
    return llama_state_seq_set_data_ext(ctx, bytes_.get(), size_, sequence, flags_of(part_)) == size_;
}

} // namespace spac
