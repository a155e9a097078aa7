#include "session/context.h"

#include "../src/llama-context.h" // for n_outputs_max, which no public function returns
#include "core/error.h"
#include "session/interrupt.h"
#include "session/llama_models.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace spac {

int common_prefix(const llama_tokens & a, const llama_tokens & b, int n_max) {
    const auto limit = std::min({a.size(), b.size(), static_cast<size_t>(std::max(n_max, 0))});
    const auto end   = a.begin() + static_cast<std::ptrdiff_t>(limit);
    return static_cast<int>(std::mismatch(a.begin(), end, b.begin()).first - a.begin());
}

llama_context * Context::checked_target(void * ctx) {
    if (ctx == nullptr) {
        throw InputError("the target context is a null pointer");
    }
    auto *       target = static_cast<llama_context *>(ctx);
    const auto * model  = llama_get_model(target);
    if (llama_model_has_encoder(model) || !llama_model_has_decoder(model)) {
        throw InputError("the target is an encoder model: a session generates with decoder-only models");
    }
    if (llama_model_is_diffusion(model)) {
        throw InputError("the target is a diffusion model: a session generates one token after another");
    }
    if (llama_get_memory(target) == nullptr) {
        throw InputError("the target keeps no memory of a sequence (an embedding model?) and cannot generate");
    }
    if (llama_vocab_n_tokens(llama_model_get_vocab(model)) < 1) {
        throw InputError("the target has no vocabulary, so its tokens cannot be sampled");
    }
    return target;
}

Context::Context(llama_context * ctx, const char * role, bool is_recurrent)
    : ctx_(ctx), role_(role), is_recurrent_(is_recurrent) {}

Context::Context(llama_context * ctx, const char * role, llama_seq_id seq_id)
    : ctx_(ctx), role_(role), is_recurrent_(false), shares_(true), seq_id_(seq_id) {}

bool Context::has_recurrent_model(const llama_context * ctx) {
    const auto * model = llama_get_model(ctx);
    return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

int Context::n_rows() const { return static_cast<int>(ctx_->get_cparams().n_outputs_max); }

void Context::check_rows(int n_tokens, int n_wanted) const {
    const bool makes_embeddings = ctx_->get_cparams().embeddings;
    const int  needed           = makes_embeddings ? n_tokens : n_wanted;
    if (needed > n_rows()) {
        throw InputError(std::string("the ") + role_ + " context has room for " + std::to_string(n_rows()) +
                         " rows of logits (n_outputs_max), and " + std::to_string(needed) + " are needed" +
                         (makes_embeddings ? " for a batch with embeddings" : "") + ": make it with n_outputs_max of " +
                         "at least " + std::to_string(needed));
    }
}

void Context::note_logit(int row, llama_token token) {
    const float * const logits = llama_get_logits_ith(ctx_, row);
    if (logits != nullptr && (std::isnan(logits[token]) || logits[token] == INFINITY)) {
        overflowed_ = true;
    }
}

void Context::clear() {
    if (shares_) {
        llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, -1, -1);
    } else {
        llama_memory_clear(llama_get_memory(ctx_), overflowed_);
    }
    overflowed_ = false;
    tokens_.clear();
    checkpoints_.clear();
    n_versions_ = 0;
}

void Context::trim(int n) {
    // This also runs when the list is not longer than `n`: a decode that failed may have left tokens behind in the
    // memory.
    n = std::min(n, n_past());
    if (is_recurrent_ && !can_go_back(n)) {
        fall_back(n);
    } else {
        go_back(n);
    }
}

void Context::keep_prefix(const llama_tokens & wanted, int n_max) {
    if (overflowed_) {
        clear();
        return;
    }
    const int n = common_prefix(tokens_, wanted, n_max);
    if (n == n_past()) {
        return;
    }
    if (can_go_back(n)) {
        go_back(n);
    } else {
        fall_back(n);
    }
}

int Context::usable(const llama_tokens & wanted, int n_max) const {
    if (overflowed_) {
        return 0;
    }
    const int n = common_prefix(tokens_, wanted, n_max);
    if (can_go_back(n)) {
        return n;
    }
    const auto * checkpoint = checkpoints_.before(n);
    return checkpoint != nullptr ? checkpoint->n_tokens : 0;
}

int Context::position(int n) const { return projector_ == nullptr ? n : projector_->table().position(tokens_, n); }

bool Context::can_go_back(int n) const {
    auto * const memory = llama_get_memory(ctx_);
    const int    held   = std::max(position(n_past()), llama_memory_seq_pos_max(memory, seq_id_) + 1);
    const int    pos    = position(n);
    if (pos == held || n == 0) {
        return true;
    }
    if (is_recurrent_ && held - pos > n_versions_) {
        return false;
    }
    return is_recurrent_ || !has_forgotten(n);
}

bool Context::has_forgotten(int n) const {
    const int n_swa   = llama_model_n_swa(model());
    const int pos_min = llama_memory_seq_pos_min(llama_get_memory(ctx_), seq_id_);
    return n_swa > 0 && n > 0 && (pos_min < 0 || pos_min > std::max(position(n) - n_swa + 1, 0));
}

void Context::go_back(int n) {
    if (n == 0) {
        clear();
        return;
    }
    if (!llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, position(n), -1)) {
        fall_back(n);
        return;
    }
    if (n < n_past()) {
        n_versions_ = 0; // a state can be taken back once
    }
    tokens_.resize(static_cast<size_t>(n));
    checkpoints_.cut(n);
}

void Context::fall_back(int n) {
    const auto * checkpoint = checkpoints_.before(n);
    if (checkpoint == nullptr || !checkpoint->state.restore(ctx_, seq_id_) ||
        !llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, position(checkpoint->n_tokens), -1)) {
        clear();
        return;
    }
    n_versions_ = 0;
    tokens_.resize(static_cast<size_t>(checkpoint->n_tokens));
    checkpoints_.cut(checkpoint->n_tokens);
}

void Context::adopt(llama_tokens tokens) {
    if (overflowed_) {
        clear();
        return;
    }
    checkpoints_.cut(common_prefix(tokens_, tokens, static_cast<int>(tokens.size())));
    tokens_        = std::move(tokens);
    n_versions_    = 0; // it is unknown which tokens they belong to
    const auto end = llama_memory_seq_pos_max(llama_get_memory(ctx_), seq_id_) + 1;
    while (position(n_past()) > end) {
        const auto last = tokens_.back();
        const int  n    = is_placeholder(last) && projector_ != nullptr ? projector_->table().extent(last).n_tokens : 1;
        tokens_.resize(tokens_.size() - std::min(tokens_.size(), static_cast<size_t>(std::max(n, 1))));
    }
    if (end > position(n_past()) && has_forgotten(n_past())) {
        fall_back(n_past());
    } else {
        trim(n_past());
    }
}

bool Context::wants_checkpoint(int n, int step) const {
    return checkpoints_.is_on() && (is_recurrent_ || llama_model_n_swa(model()) > 0) && n - checkpoints_.last() >= step;
}

void Context::checkpoint(int step) {
    if (wants_checkpoint(n_past(), step)) {
        checkpoints_.add({n_past(), MemoryState(ctx_, MemoryState::Part::passing, seq_id_)});
    }
}

int Remembered::usable(const llama_tokens & wanted) const {
    const int n = common_prefix(tokens, wanted, static_cast<int>(wanted.size()));
    if (goes_back || n == static_cast<int>(tokens.size())) {
        return n;
    }
    const auto * checkpoint = checkpoints.before(n);
    return checkpoint != nullptr ? checkpoint->n_tokens : 0;
}

Remembered Context::remember() const {
    Remembered past;
    if (n_past() > 0 && !overflowed_) {
        past.state = MemoryState(ctx_, MemoryState::Part::all, seq_id_);
    }
    if (!past.state.empty()) {
        past.tokens      = tokens_;
        past.checkpoints = checkpoints_;
        // The state of a memory with a window has only what the next token sees.
        const int n_swa = llama_model_n_swa(model());
        past.goes_back  = !is_recurrent_ && (n_swa == 0 || n_past() <= n_swa);
    }
    return past;
}

size_t Context::size_to_remember() const {
    return n_past() == 0 || overflowed_
               ? 0
               : MemoryState::size_of(ctx_, MemoryState::Part::all, seq_id_) + checkpoints_.bytes();
}

void Context::recall(Remembered past) {
    clear();
    if (past.state.empty()) {
        return;
    }
    if (!past.state.restore(ctx_, seq_id_)) {
        clear();
        return;
    }
    tokens_      = std::move(past.tokens);
    checkpoints_ = std::move(past.checkpoints);
}

void Context::add_window(common_batch & batch, llama_token last, const llama_tokens & draft) const {
    int pos = position(n_past());
    batch.add(last, pos++, seq_id_, true);
    for (const auto token : draft) {
        batch.add(token, pos++, seq_id_, true);
    }
}

bool shares_cells(const llama_context * ctx) { return ctx->get_cparams().kv_unified || llama_n_seq_max(ctx) == 1; }

void Context::decode(common_batch & batch, Interrupt & interrupt) {
    const auto n_wanted =
        std::count_if(batch.tokens.begin(), batch.tokens.end(), [](const auto & t) { return t.output; });
    check_rows(batch.size(), static_cast<int>(n_wanted));
    const int status = llama_process(ctx_, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    // The status tells about aborts. On an asynchronous device the results are ready only after this call.
    llama_synchronize(ctx_);
    if (status != 0 || !remote_loss_of(ctx_).empty()) {
        take_back();
        raise(status, batch.size(), interrupt);
    }
    for (const auto & token : batch.tokens) {
        tokens_.push_back(token.id);
    }
    n_versions_ = std::min(batch.size() - 1, static_cast<int>(llama_n_rs_seq(ctx_)));
}

void Context::decode(const ImagePiece & image, int32_t placeholder, Interrupt & interrupt) {
    SPAC_CHECK(projector_ != nullptr, placeholder);
    const int n_tokens = projector_->table().extent(placeholder).n_tokens;
    const int status   = projector_->evaluate(ctx_, image, position(n_past()), n_batch());
    llama_synchronize(ctx_);
    if (status != 0 || !remote_loss_of(ctx_).empty()) {
        take_back();
        raise(status, n_tokens, interrupt);
    }
    tokens_.insert(tokens_.end(), static_cast<size_t>(n_tokens), placeholder);
    n_versions_ = 0;
}

void Context::take_back() {
    // It is unknown how far a state has advanced. Parts of the batch may have replaced what a window held before it.
    if (is_recurrent_ || has_forgotten(n_past())) {
        fall_back(n_past());
    } else {
        trim(n_past());
    }
}

void Context::raise(int status, int n_tokens, Interrupt & interrupt) const {
    if (status == 2) {
        interrupt.raise_if_stopped();
    }
    if (const auto loss = remote_loss_of(ctx_); !loss.empty()) {
        throw DeviceError(loss);
    }
    const auto what = std::string("llama.cpp could not evaluate ") + std::to_string(n_tokens) + " tokens on the " +
                      role_ + " context at position " + std::to_string(n_past());
    switch (status) {
    case 1:
        throw InternalError(what + ": no free place in its memory, although it has room for them");
    case -2:
        throw MemoryError(what + ": out of memory; use a smaller n_ubatch");
    case -3:
        throw DeviceError(what + ": the computation failed");
    default:
        throw InternalError(what + ": status " + std::to_string(status));
    }
}

} // namespace spac
