#include "session/checkpoints.h"

#include <algorithm>
#include <iterator>
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

} // namespace spac
