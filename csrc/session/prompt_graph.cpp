#include "session/prompt_graph.h"

#include "../src/llama-context.h"
#include "../src/llama-memory.h"
#include "../src/llama-model.h"
#include "core/error.h"
#include "core/not_copied.h"
#include "ggml-backend.h"
#include "llama.h"

#include <algorithm>
#include <exception>
#include <utility>
#include <vector>

namespace spac {

namespace {

// Large graphs are planned for multiples of so many tokens, so that prompts of similar length share the buffers.
constexpr int graph_step = 256;

// Makes llama.cpp plan its graphs anew, for graphs of `n_tokens`. Returns false if the device has no memory for them.
// llama.cpp has no function that sets n_ubatch later; all that depends on it after the context was made is this plan.
bool plan(llama_context & ctx, uint32_t n_tokens) {
    const_cast<llama_cparams &>(ctx.get_cparams()).n_ubatch = n_tokens;
    // This sets what is set already. llama.cpp plans anew after it.
    ctx.set_embeddings_layer_inp(0, ctx.get_cparams().embeddings_layer_inp[0]);
    try {
        ctx.sched_reserve();
    } catch (const std::exception &) { // it has logged what it could not allocate
        return false;
    }
    return true;
}

void plan_again(llama_context & ctx, uint32_t n_tokens) {
    if (!plan(ctx, n_tokens)) {
        throw MemoryError("no memory for graphs of " + std::to_string(n_tokens) + " tokens, which there was before");
    }
}

// While it lives, llama.cpp plans graphs without allocating.
class Measuring : NotCopied {
  public:
    explicit Measuring(const llama_context & ctx) : hparams_(const_cast<llama_hparams &>(ctx.get_model().hparams)) {
        hparams_.no_alloc = true;
    }
    ~Measuring() { hparams_.no_alloc = false; }

  private:
    llama_hparams & hparams_;
};

uint32_t within_batch(const llama_context & ctx, int n_tokens) {
    return std::min(static_cast<uint32_t>(std::max(n_tokens, 1)), ctx.n_batch());
}

// Returns the bytes of each device of the largest graph that was planned without allocating.
std::map<std::string, size_t> planned_bytes(llama_context & ctx) {
    const auto           past    = ctx.get_memory()->init_full();
    const auto &         cparams = ctx.get_cparams();
    const uint32_t       n       = std::min(cparams.n_ctx, cparams.n_ubatch);
    ggml_backend_sched_t sched   = ctx.get_sched();
    std::vector<size_t>  sizes(ggml_backend_sched_get_n_backends(sched));
    ctx.graph_reserve(n, cparams.n_seq_max, std::min(n, cparams.n_outputs_max), past.get(), true, sizes.data());
    std::map<std::string, size_t> bytes;
    for (int i = 0; i < ggml_backend_sched_get_n_backends(sched); ++i) {
        auto * const type = ggml_backend_sched_get_buffer_type(sched, ggml_backend_sched_get_backend(sched, i));
        if (auto * const device = ggml_backend_buft_get_device(type); device && !ggml_backend_buft_is_host(type)) {
            bytes[ggml_backend_dev_name(device)] += sizes[i];
        }
    }
    return bytes;
}

// Makes compute buffers for graphs of `n_tokens`, at most n_batch, in place of those that the context has. The
// context's memory stays. Throws MemoryError if the device has no memory for them; then the size is the old one.
void set_graph_tokens(llama_context * ctx, int n_tokens) {
    const uint32_t before = ctx->n_ubatch(), wanted = within_batch(*ctx, n_tokens);
    if (wanted != before && !plan(*ctx, wanted)) {
        plan_again(*ctx, before);
        throw MemoryError("no memory for graphs of " + std::to_string(wanted) + " tokens");
    }
}

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
            return graph_;
        } catch (const MemoryError &) {
            n_failed = wanted;
        }
    }
    if (n_failed > 0) {
        set_graph_tokens(ctx_, small_);
    }
    return graph_;
}

bool PromptGraph::fails() {
    failing_ = graph_ > small_ ? graph_ : 0;
    return failing_ > 0;
}

std::map<std::string, size_t> graph_bytes(llama_context * ctx, int n_tokens) {
    const uint32_t before = ctx->n_ubatch();
    {
        const Measuring measuring(*ctx);
        plan(*ctx, within_batch(*ctx, n_tokens));
    }
    auto bytes = planned_bytes(*ctx);
    plan_again(*ctx, before);
    return bytes;
}

} // namespace spac
