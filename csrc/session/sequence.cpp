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

void Sequence::check(const int32_t * tokens, size_t n_tokens, const ImagePrompt * images) const {
    check_size(n_tokens);
    for (size_t i = 0; i < n_tokens; ++i) {
        const auto * const image = images != nullptr && is_placeholder(tokens[i]) ? images->piece(tokens[i]) : nullptr;
        if (image != nullptr) {
            i += check_image(tokens + i, n_tokens - i, *image) - 1;
        } else {
            check_text(tokens, i);
        }
    }
}

void Sequence::check_held(const int32_t * tokens, size_t n_tokens) const {
    check_size(n_tokens);
    const auto * const projector = target_.projector();
    for (size_t i = 0; i < n_tokens; ++i) {
        const bool is_image = projector != nullptr && projector->table().extent(tokens[i]).n_tokens > 0;
        if (!is_image) {
            check_text(tokens, i);
        }
    }
}

void Sequence::check_size(size_t n_tokens) const {
    if (n_tokens > static_cast<size_t>(target_.n_ctx())) {
        throw InputError("the prompt has " + std::to_string(n_tokens) + " tokens, the context holds " +
                         std::to_string(target_.n_ctx()) + ": shorten the prompt or make n_ctx larger");
    }
}

void Sequence::check_text(const int32_t * tokens, size_t index) const {
    if (tokens[index] < 0 || tokens[index] >= target_.n_vocab()) {
        throw InputError("token " + std::to_string(index) + " of the prompt is " + std::to_string(tokens[index]) +
                         ", the vocabulary has tokens 0 to " + std::to_string(target_.n_vocab() - 1));
    }
}

// Throws InputError unless `tokens` begin with the whole image, and text follows it. Returns how many are the image's.
size_t Sequence::check_image(const int32_t * tokens, size_t n_tokens, const ImagePiece & image) const {
    const auto n = static_cast<size_t>(target_.projector()->table().extent(tokens[0]).n_tokens);
    if (n_tokens < n || std::any_of(tokens, tokens + n, [&](int32_t token) { return token != tokens[0]; })) {
        throw InputError("the prompt holds a part of an image only");
    }
    if (n_tokens == n) {
        throw InputError("the prompt ends with an image: add text after it");
    }
    target_.projector()->check(image, target_.n_batch(), static_cast<int>(llama_n_ubatch(target_.get())));
    return n;
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
    const int pos   = target_.position(target_.n_past());
    const int n     = std::min(n_max, n_pending());
    auto      token = history_.begin() + target_.n_past();
    for (int i = 0; i < n && !is_placeholder(*token); ++i) {
        batch.add(*token++, pos + i, target_.seq_id(), false);
    }
}

std::optional<llama_token> Sequence::pending_image() const {
    const auto next = history_[static_cast<size_t>(target_.n_past())];
    return is_placeholder(next) ? std::optional(next) : std::nullopt;
}

void Sequence::begin(llama_tokens history, llama_token last) {
    history_    = std::move(history);
    last_       = last;
    has_prompt_ = true;
    has_images_ = std::any_of(history_.begin(), history_.end(), is_placeholder);
}

void Sequence::begin_from_memory() {
    history_    = target_.tokens();
    has_prompt_ = false;
    has_images_ = std::any_of(history_.begin(), history_.end(), is_placeholder);
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
    has_images_ = false;
}

} // namespace spac
