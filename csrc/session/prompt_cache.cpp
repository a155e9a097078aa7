#include "session/prompt_cache.h"

#include "session/speculator.h"

#include <utility>

namespace spac {

namespace {

// The fewest tokens that are worth a copy: fewer are evaluated as quickly as a sequence is copied.
constexpr int worth_keeping = 64;

int n_tokens(const Remembered & past) { return static_cast<int>(past.tokens.size()); }

} // namespace

bool PromptCache::exchange(const llama_tokens & wanted, Context & target, Speculator * speculator) {
    if (max_bytes_ == 0) {
        return false;
    }
    Context * const draft = speculator != nullptr ? speculator->context() : nullptr;
    const int       n     = target.usable(wanted, static_cast<int>(wanted.size()));
    const int       lost  = target.n_past() - n;
    auto            found = take(wanted, n + worth_keeping);
    // A conversation that goes on loses what its last answer has left in the memory, and nobody comes back to that.
    // Most of the memory is lost when another conversation begins.
    if (lost >= worth_keeping && 2 * lost > target.n_past()) {
        keep(target, draft);
    }
    if (!found) {
        return false;
    }
    // The draft comes first: its memory may be the target's own cells, and is cleared.
    if (draft != nullptr) {
        draft->recall(std::move(found->draft));
    }
    target.recall(std::move(found->target));
    ++n_recalled_;
    return true;
}

// Returns the entry that restores most of the first tokens of `wanted`, if it restores at least `n_at_least`. The entry
// stays in the cache if most of it is not wanted: it is a beginning that others share.
std::optional<PromptCache::Entry> PromptCache::take(const llama_tokens & wanted, int n_at_least) {
    auto best = entries_.end();
    for (auto each = entries_.begin(); each != entries_.end(); ++each) {
        const int n = each->target.usable(wanted);
        if (n >= n_at_least) {
            best       = each;
            n_at_least = n + 1;
        }
    }
    if (best == entries_.end()) {
        return std::nullopt;
    }
    entries_.splice(entries_.begin(), entries_, best);
    if (2 * (n_at_least - 1) < n_tokens(best->target)) {
        return *best;
    }
    Entry taken = std::move(*best);
    entries_.erase(best);
    return taken;
}

void PromptCache::keep(const Context & target, const Context * draft) {
    const size_t n_bytes = target.size_to_remember() + (draft != nullptr ? draft->size_to_remember() : 0);
    if (!make_room(n_bytes)) {
        return;
    }
    Entry entry;
    entry.target = target.remember();
    if (entry.target.tokens.empty()) {
        return;
    }
    if (draft != nullptr) {
        entry.draft = draft->remember();
    }
    // Entries that the new one continues are removed, because it restores all that they would.
    entries_.remove_if([&](const Entry & each) {
        return entry.target.usable(each.target.tokens) > n_tokens(each.target) - worth_keeping;
    });
    entries_.push_front(std::move(entry));
    ++n_stored_;
}

bool PromptCache::make_room(size_t n_bytes) {
    if (n_bytes > max_bytes_) {
        return false;
    }
    while (bytes() + n_bytes > max_bytes_) {
        entries_.pop_back();
    }
    return true;
}

size_t PromptCache::bytes() const {
    size_t sum = 0;
    for (const auto & each : entries_) {
        sum += each.bytes();
    }
    return sum;
}

Session::Cached PromptCache::stats() const {
    return {static_cast<int>(entries_.size()), bytes(), n_stored_, n_recalled_};
}

} // namespace spac
