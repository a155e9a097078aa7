#include "hooks/server_loop.h"

#include "backend/experts/experts.h"
#include "core/error.h"
#include "hooks/given_models.h"
#include "hooks/loop_hooks.h"
#include "hooks/loop_response.h"
#include "hooks/own_text.h"
#include "hooks/request_settings.h"
#include "hooks/running.h"

#include "log.h"
#include "server-context.h"
#include "session/draft_types.h"
#include "session/parallel_impl.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <deque>
#include <exception>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

namespace spac {

namespace {

using Handler = server_http_context::handler_t server_routes::*;

const std::map<std::string, Handler> & handlers() {
    static const std::map<std::string, Handler> table = {
        {"health", &server_routes::get_health},
        {"metrics", &server_routes::get_metrics},
        {"slots", &server_routes::get_slots},
        {"slot", &server_routes::post_slots},
        {"props", &server_routes::get_props},
        {"set-props", &server_routes::post_props},
        {"infill", &server_routes::post_infill},
        {"completion", &server_routes::post_completions},
        {"v1/completions", &server_routes::post_completions_oai},
        {"v1/chat/completions", &server_routes::post_chat_completions},
        {"v1/chat/completions/input_tokens", &server_routes::post_chat_completions_tok},
        {"v1/chat/completions/control", &server_routes::post_control},
        {"v1/responses", &server_routes::post_responses_oai},
        {"v1/responses/input_tokens", &server_routes::post_responses_tok_oai},
        {"v1/messages", &server_routes::post_anthropic_messages},
        {"v1/messages/count_tokens", &server_routes::post_anthropic_count_tokens},
        {"apply-template", &server_routes::post_apply_template},
        {"v1/models", &server_routes::get_models},
        {"tokenize", &server_routes::post_tokenize},
        {"detokenize", &server_routes::post_detokenize},
        {"embedding", &server_routes::post_embeddings},
        {"v1/embeddings", &server_routes::post_embeddings_oai},
        {"v1/rerank", &server_routes::post_rerank},
        {"lora-adapters", &server_routes::get_lora_adapters},
        {"set-lora-adapters", &server_routes::post_lora_adapters},
    };
    return table;
}

// Returns true if spac's drafts take the place of the loop's.
bool drafts_by_hook(const SessionConfig & session) {
    return (session.draft_ctx != nullptr && session.draft.types == std::vector<std::string>{"draft-simple"}) ||
           drafts_itself(session.draft);
}

common_params params_of(const LoopConfig & config) {
    const auto &          session = config.session;
    auto * const          target  = static_cast<llama_context *>(session.target_ctx);
    const llama_context * draft   = static_cast<llama_context *>(session.draft_ctx);
    common_params         params;
    params.model.path  = config.path;
    params.model_alias = {config.name};
    params.model_alias.insert(config.aliases.begin(), config.aliases.end());
    params.reasoning_format          = common_reasoning_format_from_name(config.reasoning_format);
    params.force_pure_content_parser = !config.parses;
    params.endpoint_slots            = config.shows_slots;
    params.chat_template             = config.template_text;
    params.mmproj.path               = config.projector;
    params.slot_save_path            = config.slot_folder;
    params.n_parallel                = config.n_slots;
    params.n_ctx                     = static_cast<int32_t>(llama_n_ctx(target));
    params.n_batch                   = static_cast<int32_t>(llama_n_batch(target));
    params.n_ubatch                  = static_cast<int32_t>(llama_n_ubatch(target));
    params.kv_unified                = llama_n_ctx_seq(target) == llama_n_ctx(target);
    params.fit_params                = false;
    params.warmup                    = false;
    // common makes a pool of threads, which GivenModels does not let it attach.
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1;
    params.cache_ram_mib           = static_cast<int32_t>(std::min<size_t>(session.prompt_cache_bytes >> 20, 1 << 30));
    params.n_ctx_checkpoints       = session.n_checkpoints;
    params.checkpoint_min_step     = session.checkpoint_step;
    params.sampling                = sampling_params(session.sampling, llama_get_model(target), params.n_ctx);
    params.speculative             = speculative_params(session.draft);
    params.enable_reasoning        = config.reasons ? -1 : 0;
    params.prefill_assistant       = config.prefills;
    params.default_template_kwargs = config.template_variables;
    params.default_template_kwargs.emplace("preserve_reasoning", "true"); // as llama-server's options do
    params.endpoint_metrics = true;
    params.embedding        = config.embeds;
    params.pooling_type     = llama_pooling_type(target);
    if (config.is_verbose) {
        params.verbosity = INT_MAX;
        common_log_set_verbosity_thold(INT_MAX);
    }
    params.sampling.reasoning_budget_tokens  = config.reasoning_budget;
    params.sampling.reasoning_budget_message = config.reasoning_message;
    if (!config.adapters.empty()) {
        params.cache_ram_mib = 0; // this cache does not know which adapters computed what it holds
    }
    for (const auto & each : config.adapters) {
        common_adapter_lora_info info;
        info.path  = each.path;
        info.scale = each.scale;
        params.lora_adapters.push_back(info);
    }
    if (drafts_by_hook(session)) {
        params.speculative.types = {COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE}; // so that the loop asks for drafts
    } else if (draft != nullptr && llama_get_model(draft) != llama_get_model(target)) {
        params.speculative.draft.mparams.path = "given";
    }
    return params;
}

} // namespace

struct ServerLoop::Impl {
    explicit Impl(const LoopConfig & config)
        : params(params_of(config)), target{nullptr, static_cast<llama_context *>(config.session.target_ctx)},
          draft{nullptr, static_cast<llama_context *>(config.session.draft_ctx)},
          hooks(target.context, config.session.experts, config.session.trace, config.lock, params.n_parallel,
                params.n_parallel * (1 + std::max(0, config.session.draft.n_max))) {
        hooks.set_least_draft(config.session.draft.n_min);
        target.model = const_cast<llama_model *>(llama_get_model(target.context));
        std::vector<float> scales;
        for (const auto & each : config.adapters) {
            adapters.push_back(static_cast<llama_adapter_lora *>(each.adapter));
            scales.push_back(each.scale);
        }
        projector = config.session.projector != nullptr ? config.session.projector->context() : nullptr;
        settings  = std::make_shared<RequestSettings>(scales, std::min(params.n_batch, params.n_ubatch));
        if (draft.context != nullptr) {
            draft.model = const_cast<llama_model *>(llama_get_model(draft.context));
            draft.model = draft.model == target.model ? nullptr : draft.model;
        }
        if (drafts_by_hook(config.session)) {
            draft = {};
            for (int i = 0; i < params.n_parallel; ++i) {
                sequences.emplace_back(target.context, static_cast<llama_seq_id>(i));
            }
            hooks.set_drafts(make_drafts(config.session));
        }
    }

    std::unique_ptr<ParallelDrafts> make_drafts(const SessionConfig & session) {
        std::vector<Context *> targets;
        for (auto & each : sequences) {
            targets.push_back(&each);
        }
        return std::make_unique<ParallelDrafts>(session.draft, targets, static_cast<llama_context *>(session.draft_ctx),
                                                drafts_itself(session.draft) ? session.experts : session.draft_experts);
    }

    void                run();
    bool                terminate();
    server_http_res_ptr forget_slots(const std::function<bool()> & stops) const;

    common_params                     params;
    GivenModel                        target, draft;
    std::vector<llama_adapter_lora *> adapters;
    std::shared_ptr<mtmd_context>     projector; // null: none
    std::shared_ptr<RequestSettings>  settings;
    std::deque<Context>               sequences;
    LoopHooks                         hooks;
    std::unique_ptr<server_context>   context;
    std::unique_ptr<server_routes>    routes;
    server_http_context::handler_t forget  = [this](const auto & request) { return forget_slots(request.should_stop); };
    std::shared_ptr<Running>       running = std::make_shared<Running>();
    std::promise<bool>             loaded;
    std::mutex                     lock;              // of has_ended
    bool                           has_ended = false; // true: the context may be freed
    std::thread                    thread;
};

// The loop's thread, from loading to the end.
void ServerLoop::Impl::run() {
    const GivenModels given(target, draft, adapters, projector.get());
    bool              is_well = false;
    try {
        const AbortGuard guard;
        context = std::make_unique<server_context>();
        routes  = std::make_unique<server_routes>(params, *context);
        is_well = context->load_model(params);
        if (is_well) {
            routes->update_meta(*context);
            hooks.attach(); // what the load decodes is none of a text
        }
        loaded.set_value(is_well);
    } catch (const std::exception & error) {
        is_well = false;
        loaded.set_exception(std::make_exception_ptr(InputError(std::string("llama.cpp's server: ") + error.what())));
    }
    if (is_well) {
        const AbortGuard guard;
        context->start_loop();
    }
    {
        const std::lock_guard hold(lock);
        has_ended = true;
    }
    routes.reset();
    context.reset();
    hooks.detach();
}

server_http_res_ptr ServerLoop::Impl::forget_slots(const std::function<bool()> & stops) const {
    for (int i = 0; i < params.n_parallel; ++i) {
        auto        reader = context->get_response_reader(); // which takes one task
        server_task task(SERVER_TASK_TYPE_SLOT_ERASE);
        task.id                  = reader.get_new_id();
        task.slot_action.id_slot = i;
        reader.post_task(std::move(task));
        if (const auto result = reader.next(stops); result == nullptr || result->is_error()) {
            return error_response("a slot could not be emptied", ERROR_TYPE_UNAVAILABLE);
        }
    }
    return std::make_unique<server_http_res>();
}

// Ends the loop. Returns false if it has ended. A loop that has not begun takes no notice.
bool ServerLoop::Impl::terminate() {
    const std::lock_guard hold(lock);
    if (!has_ended) {
        context->terminate();
    }
    return !has_ended;
}

ServerLoop::ServerLoop(const LoopConfig & config) : impl_(std::make_unique<Impl>(config)) {
    auto & impl  = *impl_;
    impl.thread  = std::thread([&impl, around = config.around] { around([&] { impl.run(); }); });
    bool is_well = false;
    try {
        is_well = impl.loaded.get_future().get();
    } catch (...) {
        impl.thread.join();
        throw;
    }
    if (!is_well) {
        impl.thread.join();
        throw InputError("llama.cpp's server could not start with these models and options; its log says why");
    }
}

ServerLoop::~ServerLoop() {
    impl_->hooks.stop();
    impl_->running->stop();
    while (impl_->terminate()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    impl_->thread.join();
}

std::vector<std::string> ServerLoop::routes() {
    std::vector<std::string> names;
    for (const auto & [name, handler] : handlers()) {
        names.push_back(name);
    }
    return names;
}

std::string ServerLoop::media_marker() { return get_media_marker(); }

std::unique_ptr<LoopResponse> ServerLoop::begin(const LoopRequest & request) {
    if (request.route == "forget") {
        return make_response(request, impl_->forget, impl_->settings, impl_->running);
    }
    const auto found = handlers().find(request.route);
    if (found == handlers().end()) {
        throw InputError("llama.cpp's server has no route " + request.route);
    }
    return make_response(request, (*impl_->routes).*(found->second), impl_->settings, impl_->running);
}

std::unique_ptr<LoopText> ServerLoop::generate(TextRequest request) {
    return make_text(std::move(request), {&impl_->params, impl_->context.get(), impl_->target.context, impl_->projector,
                                          impl_->settings, impl_->running});
}

void ServerLoop::set_listeners(const Listeners & listeners, LoopListeners more) {
    impl_->hooks.set_listeners(listeners, std::move(more));
}

} // namespace spac
