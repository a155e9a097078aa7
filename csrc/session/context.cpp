#include "session/context.h"

#include "session/llama_models.h"

#include <algorithm>
#include <utility>

namespace spac {

bool Context::has_recurrent_model(const llama_context * ctx) {
    const auto * model = llama_get_model(ctx);
    return llama_model_is_recurrent(model) || llama_model_is_hybrid(model);
}

void Context::clear() {
    llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, -1, -1);
    tokens_.clear();
}

void Context::trim(int n) {
    // This also runs when the list is not longer than `n`: a decode that failed may have left tokens behind in the
    // memory.
    n = std::min(n, n_past());
    if (n == 0 || !llama_memory_seq_rm(llama_get_memory(ctx_), seq_id_, n, -1)) {
        clear();
    } else {
        tokens_.resize(static_cast<size_t>(n));
    }
}

void Context::keep_prefix(const llama_tokens & wanted) {
    const auto most = static_cast<std::ptrdiff_t>(std::min(tokens_.size(), wanted.size()));
    const auto end  = std::mismatch(tokens_.begin(), tokens_.begin() + most, wanted.begin()).first;
    const int  n    = static_cast<int>(end - tokens_.begin());
    if (n < n_past()) {
        trim(has_forgotten(n) ? 0 : n);
    }
}

bool Context::has_forgotten(int n) const {
    const int n_swa   = llama_model_n_swa(llama_get_model(ctx_));
    const int pos_min = llama_memory_seq_pos_min(llama_get_memory(ctx_), seq_id_);
    return n_swa > 0 && n > 0 && (pos_min < 0 || pos_min > std::max(n - n_swa + 1, 0));
}

void Context::adopt(llama_tokens tokens) {
    tokens_       = std::move(tokens);
    const int end = llama_memory_seq_pos_max(llama_get_memory(ctx_), seq_id_) + 1;
    tokens_.resize(std::min(tokens_.size(), static_cast<size_t>(end)));
    trim(end > n_past() && has_forgotten(n_past()) ? 0 : n_past());
}

bool Context::decode(llama_token token) {
    common_batch batch(ctx_);
    batch.add(token, n_past(), seq_id_, true);
    const bool is_well = llama_process(ctx_, LLAMA_PROCESS_TYPE_DECODE, batch.get()) == 0;
    // On an asynchronous device the results are ready only after this call.
    llama_synchronize(ctx_);
    if (is_well && remote_loss_of(ctx_).empty()) {
        tokens_.push_back(token);
        return true;
    }
    trim(n_past());
    return false;
}

} // namespace spac
