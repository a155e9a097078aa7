#include "session/llama_models.h"

#include "../src/llama-ext.h"   // for the graphs of prediction layers
#include "../src/llama-model.h" // for a model's devices, which no public function returns
#include "backend/experts/experts.h"
#include "backend/remote/rpc.h"
#include "backend/split/thread_pool.h"
#include "core/error.h"
#include "ggml.h"
#include "llama.h"
#include "log.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <type_traits>

namespace spac {

namespace {

template <typename T> T * at(Address address, const char * what) {
    if (address == 0) {
        throw InputError(std::string(what) + ": a null pointer");
    }
    return reinterpret_cast<T *>(address);
}

Address         address_of(const void * pointer) { return reinterpret_cast<Address>(pointer); }
llama_model *   model_at(Address address) { return at<llama_model>(address, "the model"); }
llama_context * context_at(Address address) { return at<llama_context>(address, "the context"); }

const llama_vocab * vocab_of(Address model) { return llama_model_get_vocab(model_at(model)); }

std::string text_of(const char * text) { return text == nullptr ? "" : text; }

void check_servers(const llama_context * ctx) {
    if (const auto loss = remote_loss_of(ctx); !loss.empty()) {
        throw DeviceError(loss);
    }
}

} // namespace

// Errors of the common library, which logs to stderr, reach the caller as exceptions anyway.
void start_llama() {
    llama_backend_init();
    common_log_set_verbosity_thold(-1);
}

void log_to(LogCallback callback) {
    llama_log_set([](ggml_log_level level, const char * text,
                     void * data) { reinterpret_cast<LogCallback>(data)(static_cast<int>(level), text); },
                  reinterpret_cast<void *>(callback));
}

// Models

Address load_model(const std::string & path, const std::vector<Address> & devices, const Fields & fields,
                   const Overrides & overrides, std::vector<float> tensor_split,
                   const std::function<bool(float)> & progress) {
    auto                            params = llama_model_default_params();
    std::vector<ggml_backend_dev_t> handles;
    for (const auto device : devices) {
        handles.push_back(at<std::remove_pointer_t<ggml_backend_dev_t>>(device, "the device"));
    }
    handles.push_back(nullptr);
    params.devices      = handles.data();
    params.n_gpu_layers = devices.empty() ? 0 : -1;
    set_fields(fields, params);
    if (tensor_split.size() > llama_max_devices() || devices.size() > llama_max_devices()) {
        throw InputError("llama.cpp divides layers between " + std::to_string(llama_max_devices()) +
                         " devices at most");
    }
    if (!tensor_split.empty()) {
        tensor_split.resize(llama_max_devices(), 0); // the library reads so many numbers, and copies them
        params.tensor_split = tensor_split.data();
    }
    const auto entries = entries_of(overrides);
    if (!overrides.empty()) {
        params.kv_overrides = entries.data();
    }
    if (progress) {
        params.progress_callback = [](float done, void * data) {
            return (*static_cast<const std::function<bool(float)> *>(data))(done);
        };
        params.progress_callback_user_data = const_cast<std::function<bool(float)> *>(&progress);
    }
    const AbortGuard guard;
    return address_of(llama_model_load_from_file(path.c_str(), params));
}

void free_model(Address model) { llama_model_free(model_at(model)); }

int model_layers(Address model) { return llama_model_n_layer(model_at(model)); }

int model_extra_layers(Address model) { return llama_model_n_layer_nextn(model_at(model)); }

uint64_t model_bytes(Address model) { return llama_model_size(model_at(model)); }

std::string model_description(Address model) {
    std::array<char, 256> text{};
    llama_model_desc(model_at(model), text.data(), text.size());
    return text.data();
}

bool model_is_recurrent(Address model) {
    const auto * const known = model_at(model);
    return llama_model_is_recurrent(known) || llama_model_is_hybrid(known);
}

bool model_has_window(Address model) { return llama_model_n_swa(model_at(model)) > 0; }

bool model_has_encoder(Address model) { return llama_model_has_encoder(model_at(model)); }

std::string chat_template(Address model) { return text_of(llama_model_chat_template(model_at(model), nullptr)); }

// Tokens

Address model_vocabulary(Address model) { return address_of(vocab_of(model)); }

int n_model_tokens(Address model) { return llama_vocab_n_tokens(vocab_of(model)); }

int begin_token(Address model) { return llama_vocab_bos(vocab_of(model)); }

bool adds_begin(Address model) { return llama_vocab_get_add_bos(vocab_of(model)); }

std::string token_text(Address model, int token) { return text_of(llama_vocab_get_text(vocab_of(model), token)); }

bool is_end(Address model, int token) { return llama_vocab_is_eog(vocab_of(model), token); }

std::string token_piece(Address vocabulary, int token, bool special) {
    const auto * const vocab = at<const llama_vocab>(vocabulary, "the vocabulary");
    std::string        text(64, '\0');
    while (true) {
        const auto room  = static_cast<int32_t>(text.size());
        const auto count = llama_token_to_piece(vocab, token, text.data(), room, 0, special);
        text.resize(static_cast<size_t>(std::abs(count)));
        if (count >= 0) {
            return text;
        }
    }
}

std::vector<int32_t> tokenize(Address model, const std::string & text, bool special) {
    const auto * const   vocab = vocab_of(model);
    std::vector<int32_t> tokens(text.size() + 8);
    for (int i = 0; i < 2; ++i) {
        const auto size  = static_cast<int32_t>(text.size());
        const auto room  = static_cast<int32_t>(tokens.size());
        const auto count = llama_tokenize(vocab, text.data(), size, tokens.data(), room, true, special);
        tokens.resize(static_cast<size_t>(std::abs(static_cast<int64_t>(count))));
        if (count >= 0) {
            return tokens;
        }
    }
    throw Error("llama.cpp could not tokenize the prompt");
}

// Contexts

Address new_context(Address model, const Fields & fields) {
    auto params = llama_context_default_params();
    set_fields(fields, params);
    const AbortGuard guard;
    auto * const     ctx = llama_init_from_model(model_at(model), params);
    // Each prediction layer has a graph of its own, and experts are split whose graphs are planned before they count.
    const bool predicts = ctx != nullptr && params.ctx_type == LLAMA_CONTEXT_TYPE_MTP;
    for (int layer = 1; predicts && layer < model_extra_layers(model); ++layer) {
        llama_set_nextn_layer_offset(ctx, layer);
        llama_graph_reserve(ctx, 1, 1, 1);
        llama_set_nextn_layer_offset(ctx, 0);
    }
    return address_of(ctx);
}

void free_context(Address context) { llama_free(context_at(context)); }

int context_size(Address context) { return static_cast<int>(llama_n_ctx(context_at(context))); }

int context_threads(Address context) {
    auto * const ctx = context_at(context);
    return std::max(llama_n_threads(ctx), llama_n_threads_batch(ctx));
}

int batch_tokens(Address context) { return static_cast<int>(llama_n_batch(context_at(context))); }

int graph_tokens(Address context) { return static_cast<int>(llama_n_ubatch(context_at(context))); }

// Adapters

Address load_adapter(Address model, const std::string & path) {
    const AbortGuard guard;
    return address_of(llama_adapter_lora_init(model_at(model), path.c_str()));
}

bool apply_adapters(Address context, const std::vector<Address> & adapters, std::vector<float> scales) {
    std::vector<llama_adapter_lora *> pointers;
    for (const auto adapter : adapters) {
        pointers.push_back(at<llama_adapter_lora>(adapter, "the adapter"));
    }
    if (pointers.size() != scales.size()) {
        throw InputError("apply_adapters needs one scale for each adapter");
    }
    auto * const     ctx = context_at(context);
    const AbortGuard guard;
    auto             failed = llama_set_adapters_lora(ctx, pointers.data(), pointers.size(), scales.data());
    if (failed == 0) {
        // The first decoding allocates the adapters' memory. Decode now, because slots take all memory later.
        llama_token token = 0;
        failed            = llama_decode(ctx, llama_batch_get_one(&token, 1));
    }
    llama_memory_clear(llama_get_memory(ctx), true);
    return failed == 0;
}

// Evaluation

int rehearse(Address context, int n_tokens) {
    auto * const             ctx = context_at(context);
    std::vector<llama_token> tokens(static_cast<size_t>(n_tokens), 0);
    int                      status = llama_decode(ctx, llama_batch_get_one(tokens.data(), n_tokens));
    for (int i = 0; i < 3 && status == 0; ++i) { // CUDA captures a graph when it comes for the second time
        status = llama_decode(ctx, llama_batch_get_one(tokens.data(), 1));
    }
    llama_synchronize(ctx);
    llama_memory_clear(llama_get_memory(ctx), true);
    return status;
}

int decode(Address context, const std::vector<int32_t> & tokens, int position, bool logits) {
    auto * const ctx = context_at(context);
    if (tokens.empty()) {
        throw InputError("decode needs a token");
    }
    auto batch     = llama_batch_init(static_cast<int32_t>(tokens.size()), 0, 1);
    batch.n_tokens = static_cast<int32_t>(tokens.size());
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.token[i]     = tokens[i];
        batch.pos[i]       = position + static_cast<int>(i);
        batch.n_seq_id[i]  = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i]    = static_cast<int8_t>(logits);
    }
    const int status = llama_decode(ctx, batch);
    llama_batch_free(batch);
    check_servers(ctx);
    return status;
}

std::pair<const float *, int> logits(Address context) {
    auto * const        ctx  = context_at(context);
    const float * const rows = llama_get_logits(ctx);
    check_servers(ctx);
    if (rows == nullptr) {
        throw InputError("the context has no logits");
    }
    return {rows, llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)))};
}

void synchronize(Address context) {
    llama_synchronize(context_at(context));
    check_servers(context_at(context));
}

std::uintptr_t llama_decode_address() { return reinterpret_cast<std::uintptr_t>(&llama_decode); }

std::string ggml_version_text() { return ggml_version(); }

std::string system_info() { return llama_print_system_info(); }

void attach_pool(Address context, const ThreadPool & pool) {
    llama_attach_threadpool(context_at(context), pool.get(), pool.get());
}

std::string remote_loss_of(const llama_context * ctx) {
    for (const auto & device : llama_get_model(ctx)->devices) {
        if (std::string loss = remote_loss(device.dev); !loss.empty()) {
            return loss;
        }
    }
    return "";
}

} // namespace spac
