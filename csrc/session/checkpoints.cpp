#include "session/checkpoints.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <utility>

namespace spac {

void Checkpoints::add(Checkpoint checkpoint) {
    if (!is_on() || checkpoint.state.empty()) {
        return;
    }
    cut(checkpoint.n_tokens - 1);
    list_.push_back(std::move(checkpoint));
    if (static_cast<int>(list_.size()) <= n_max_) {
        return;
    }
    // The new one is never removed: the sequence will most probably continue from it.
    auto closest = list_.begin();
    int  gap     = closest->n_tokens;
    for (auto each = std::next(list_.begin()); each != std::prev(list_.end()); ++each) {
        const int behind = each->n_tokens - std::prev(each)->n_tokens;
        if (behind < gap) {
            gap     = behind;
            closest = each;
        }
    }
    list_.erase(closest);
}

const Checkpoint * Checkpoints::before(int n_tokens) const {
    const auto found =
        std::find_if(list_.rbegin(), list_.rend(), [&](const Checkpoint & each) { return each.n_tokens <= n_tokens; });
    return found == list_.rend() ? nullptr : &*found;
}

void Checkpoints::cut(int n_tokens) {
    while (!list_.empty() && list_.back().n_tokens > n_tokens) {
        list_.pop_back();
    }
}

size_t Checkpoints::bytes() const {
    size_t sum = 0;
    for (const auto & each : list_) {
        sum += each.state.size();
    }
    return sum;
}

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
