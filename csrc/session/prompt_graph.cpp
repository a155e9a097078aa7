#include "session/prompt_graph.h"

#include "core/error.h"
#include "llama.h"
#include "session/graph_size.h"

#include <algorithm>
#include <utility>

namespace spac {

namespace {

// Large graphs are planned for multiples of so many tokens, so that prompts of similar length share the buffers.
constexpr int graph_step = 256;

} // namespace

PromptGraph::PromptGraph(llama_context * ctx)
    : ctx_(ctx), small_(static_cast<int>(llama_n_ubatch(ctx))), graph_(small_) {}

int PromptGraph::choose(int n_pending, const std::function<int(int, int)> & wish) {
    const int n_batch  = static_cast<int>(llama_n_batch(ctx_));
    int       n_failed = std::exchange(failing_, 0);
    graph_             = small_;
    while (wish) {
        const int wanted = std::min(wish(n_pending, n_failed), n_batch);
        failed_          = n_failed > 0 ? n_failed : failed_;
        if (wanted <= small_ || (failed_ > 0 && wanted >= failed_)) {
            break;
        }
        try {
            if (n_failed > 0 || wanted > static_cast<int>(llama_n_ubatch(ctx_))) {
                set_graph_tokens(ctx_, (wanted + graph_step - 1) / graph_step * graph_step);
            }
            graph_ = wanted;
            return wanted;
        } catch (const MemoryError &) {
            n_failed = wanted;
        }
    }
    if (n_failed > 0) {
        set_graph_tokens(ctx_, small_);
    }
    // llama.cpp cuts a batch into graphs of n_ubatch, which stays large once it was.
    return static_cast<int>(llama_n_ubatch(ctx_)) > small_ ? small_ : n_batch;
}

bool PromptGraph::fails() {
    failing_ = is_large() ? graph_ : 0;
    return failing_ > 0;
}

} // namespace spac
