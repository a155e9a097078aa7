#include "session/sequence.h"

#include "core/error.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

const char * to_string(StopReason reason) {
    switch (reason) {
    case StopReason::stop:
        return "stop";
    case StopReason::length:
        return "length";
    default:
        return "";
    }
}

void Sequence::check(const int32_t * tokens, size_t n_tokens) const {
    if (n_tokens > static_cast<size_t>(target_.n_ctx())) {
        throw InputError("the prompt has " + std::to_string(n_tokens) + " tokens, the context holds " +
                         std::to_string(target_.n_ctx()) + ": shorten the prompt or make n_ctx larger");
    }
    for (size_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= target_.n_vocab()) {
            throw InputError("token " + std::to_string(i) + " of the prompt is " + std::to_string(tokens[i]) +
                             ", the vocabulary has tokens 0 to " + std::to_string(target_.n_vocab() - 1));
        }
    }
}

std::vector<int32_t> Sequence::tokens() const {
    auto all = history_;
    if (has_prompt_) {
        all.push_back(last_);
    }
    return all;
}

bool Sequence::is_start_of(const llama_tokens & tokens) const {
    return history_.size() <= tokens.size() && std::equal(history_.begin(), history_.end(), tokens.begin());
}

void Sequence::add_pending(common_batch & batch, int n_max) const {
    const int pos = target_.n_past();
    const int n   = std::min(n_max, n_pending());
    for (int i = 0; i < n; ++i) {
        batch.add(history_[static_cast<size_t>(pos + i)], pos + i, 0, false);
    }
}

void Sequence::begin(llama_tokens history, llama_token last) {
    history_    = std::move(history);
    last_       = last;
    has_prompt_ = true;
}

void Sequence::begin_from_memory() {
    history_    = target_.tokens();
    has_prompt_ = false;
}

StopReason Sequence::append(const llama_tokens & accepted) {
    history_.push_back(last_);
    history_.insert(history_.end(), accepted.begin(), accepted.end() - 1);
    last_ = accepted.back();
    rewind();
    if (llama_vocab_is_eog(target_.vocab(), last_)) {
        return StopReason::stop;
    }
    return is_full() ? StopReason::length : StopReason::none;
}

void Sequence::clear() {
    history_.clear();
    has_prompt_ = false;
}

} // namespace spac
