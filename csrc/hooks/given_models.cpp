#include "hooks/given_models.h"

#include <algorithm>
#include <utility>

namespace spac {

namespace {
thread_local GivenModels * given = nullptr;
}

GivenModels::GivenModels(const GivenModel & target, const GivenModel & draft,
                         std::vector<llama_adapter_lora *> adapters, mtmd_context * projector)
    : given_{target, draft}, adapters_(std::move(adapters)), projector_(projector) {
    given = this;
}

GivenModels::~GivenModels() { given = nullptr; }

llama_model * GivenModels::next_model() { return n_loaded_ < 2 ? given_[n_loaded_++].model : nullptr; }

llama_context * GivenModels::next_context(const llama_model * model) {
    if (n_contexts_ == 2) {
        return nullptr;
    }
    const auto & next  = given_[n_contexts_];
    const auto * owner = next.model != nullptr ? next.model : given_[0].model;
    if (next.context == nullptr || owner != model) {
        return nullptr;
    }
    ++n_contexts_;
    return next.context;
}

llama_adapter_lora * GivenModels::next_adapter() {
    return n_adapters_ < adapters_.size() ? adapters_[n_adapters_++] : nullptr;
}

bool GivenModels::has(const llama_model * model) const {
    return model != nullptr && (model == given_[0].model || model == given_[1].model);
}

bool GivenModels::has(const llama_context * context) const {
    return context != nullptr && (context == given_[0].context || context == given_[1].context);
}

bool GivenModels::has(const llama_adapter_lora * adapter) const {
    return std::find(adapters_.begin(), adapters_.end(), adapter) != adapters_.end();
}

int GivenModels::context_of(const llama_model * model) const {
    return given_[0].model == model ? static_cast<int>(llama_n_ctx_seq(given_[0].context)) : 0;
}

} // namespace spac

using spac::given;

// The linker calls these in place of llama.cpp's functions (csrc/CMakeLists.txt).
extern "C" {
llama_model *        __real_llama_model_load_from_file(const char * path, llama_model_params params);
llama_context *      __real_llama_init_from_model(llama_model * model, llama_context_params params);
void                 __real_llama_model_free(llama_model * model);
void                 __real_llama_free(llama_context * context);
llama_adapter_lora * __real_llama_adapter_lora_init(llama_model * model, const char * path);
void                 __real_llama_adapter_lora_free(llama_adapter_lora * adapter);
mtmd_context * __real_mtmd_init_from_file(const char * path, const llama_model * model, mtmd_context_params params);
void           __real_mtmd_free(mtmd_context * projector);
int32_t        __real_llama_model_n_ctx_train(const llama_model * model);
void           __real_llama_attach_threadpool(llama_context * context, ggml_threadpool_t pool, ggml_threadpool_t batch);

llama_model * __wrap_llama_model_load_from_file(const char * path, llama_model_params params) {
    if (given != nullptr) {
        if (auto * const model = given->next_model()) {
            return model;
        }
    }
    return __real_llama_model_load_from_file(path, params);
}

llama_context * __wrap_llama_init_from_model(llama_model * model, llama_context_params params) {
    if (given != nullptr) {
        if (auto * const context = given->next_context(model)) {
            return context;
        }
    }
    return __real_llama_init_from_model(model, params);
}

void __wrap_llama_model_free(llama_model * model) {
    if (given == nullptr || !given->has(model)) {
        __real_llama_model_free(model);
    }
}

void __wrap_llama_free(llama_context * context) {
    if (given == nullptr || !given->has(context)) {
        __real_llama_free(context);
    }
}

void __wrap_llama_attach_threadpool(llama_context * context, ggml_threadpool_t pool, ggml_threadpool_t batch) {
    if (given == nullptr || !given->has(context)) {
        __real_llama_attach_threadpool(context, pool, batch);
    }
}

llama_adapter_lora * __wrap_llama_adapter_lora_init(llama_model * model, const char * path) {
    if (given != nullptr) {
        if (auto * const adapter = given->next_adapter()) {
            return adapter;
        }
    }
    return __real_llama_adapter_lora_init(model, path);
}

void __wrap_llama_adapter_lora_free(llama_adapter_lora * adapter) {
    if (given == nullptr || !given->has(adapter)) {
        __real_llama_adapter_lora_free(adapter);
    }
}

mtmd_context * __wrap_mtmd_init_from_file(const char * path, const llama_model * model, mtmd_context_params params) {
    if (given != nullptr && given->projector() != nullptr) {
        return given->projector();
    }
    return __real_mtmd_init_from_file(path, model, params);
}

void __wrap_mtmd_free(mtmd_context * projector) {
    if (given == nullptr || given->projector() != projector) {
        __real_mtmd_free(projector);
    }
}

// The server would cut a slot's context to the length of the training, also with --rope-scaling.
int32_t __wrap_llama_model_n_ctx_train(const llama_model * model) {
    const int32_t trained = __real_llama_model_n_ctx_train(model);
    return given == nullptr ? trained : std::max(trained, given->context_of(model));
}
}
