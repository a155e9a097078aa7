#include "session/context.h"

#include "core/error.h"
#include "session/interrupt.h"

#include <algorithm>
#include <string>

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

Context::Context(llama_context * ctx, const char * role) : ctx_(ctx), role_(role) {}

void Context::clear() {
    llama_memory_clear(llama_get_memory(ctx_), false);
    tokens_.clear();
}

void Context::trim(int n) {
    // Also when the list is no longer than n: a decode that failed may have left tokens behind in the memory.
    if (n < n_past()) {
        tokens_.resize(static_cast<size_t>(n));
    }
    if (!llama_memory_seq_rm(llama_get_memory(ctx_), 0, n_past(), -1)) {
        clear();
    }
}

void Context::keep_prefix(const llama_tokens & wanted, int n_max) {
    const int n = common_prefix(tokens_, wanted, n_max);
    if (n == n_past()) {
        return;
    }
    // The next token looks back n_swa tokens. A window cache that went on past n has overwritten some of them.
    const int n_swa   = llama_model_n_swa(model());
    const int pos_min = llama_memory_seq_pos_min(llama_get_memory(ctx_), 0);
    if (n_swa > 0 && pos_min > 0 && pos_min >= n - n_swa) {
        clear();
        return;
    }
    trim(n);
}

void Context::adopt(llama_tokens tokens) {
    tokens_        = std::move(tokens);
    const auto end = llama_memory_seq_pos_max(llama_get_memory(ctx_), 0) + 1;
    if (static_cast<size_t>(end) < tokens_.size()) {
        tokens_.resize(static_cast<size_t>(end));
    }
    trim(n_past());
}

void Context::decode(common_batch & batch, Interrupt & interrupt) {
    const int status = llama_process(ctx_, LLAMA_PROCESS_TYPE_DECODE, batch.get());
    // Aborts show in the status; on an asynchronous device the results are there only after this.
    llama_synchronize(ctx_);
    if (status == 0) {
        for (const auto & token : batch.tokens) {
            tokens_.push_back(token.id);
        }
        return;
    }
    trim(n_past());
    if (status == 2) {
        interrupt.raise_if_stopped();
    }
    const auto what = std::string("llama.cpp could not evaluate ") + std::to_string(batch.size()) + " tokens on the " +
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
