#include "session/llama_models.h"

#include "backend/wrapper/device.h"
#include "core/error.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama.h"

#include <cstring>
#include <limits>
#include <type_traits>

namespace spac {

namespace {

// Sets a field. Returns false if it cannot have the value.
template <typename T> bool assign(T & field, const FieldValue & value) {
    const auto * const number = std::get_if<double>(&value);
    if constexpr (std::is_floating_point_v<T>) {
        field = number != nullptr ? static_cast<T>(*number)
                                  : std::visit([](auto other) { return static_cast<T>(other); }, value);
        return true;
    } else {
        if (number != nullptr) {
            return false;
        }
        const int64_t whole = std::holds_alternative<bool>(value) ? std::get<bool>(value) : std::get<int64_t>(value);
        if constexpr (std::is_pointer_v<T>) {
            field = reinterpret_cast<T>(static_cast<Address>(whole));
        } else if constexpr (std::is_enum_v<T>) {
            field = static_cast<T>(whole);
        } else {
            if (whole < static_cast<int64_t>(std::numeric_limits<T>::min()) ||
                whole > static_cast<int64_t>(std::numeric_limits<T>::max())) {
                return false;
            }
            field = static_cast<T>(whole);
        }
        return true;
    }
}

template <typename Params> using Setters = std::map<std::string, bool (*)(Params &, const FieldValue &)>;

#define FIELD(name)                                                                                                    \
    {                                                                                                                  \
#name, [](auto & params, const FieldValue & value) { return assign(params.name, value); }                      \
    }

const Setters<llama_model_params> model_fields = {
    FIELD(n_gpu_layers),
    FIELD(split_mode),
    FIELD(load_mode),
    FIELD(lazy_mode),
    FIELD(main_gpu),
    FIELD(vocab_only),
    FIELD(check_tensors),
    FIELD(use_extra_bufts),
    FIELD(no_host),
    FIELD(no_alloc),
    FIELD(load_mtp),
    FIELD(tensor_split),
    FIELD(tensor_buft_overrides),
};

const Setters<llama_context_params> context_fields = {
    FIELD(n_ctx),
    FIELD(n_batch),
    FIELD(n_ubatch),
    FIELD(n_seq_max),
    FIELD(n_rs_seq),
    FIELD(n_outputs_max),
    FIELD(n_outputs_max_per_seq),
    FIELD(n_threads),
    FIELD(n_threads_batch),
    FIELD(ctx_type),
    FIELD(rope_scaling_type),
    FIELD(pooling_type),
    FIELD(attention_type),
    FIELD(flash_attn_type),
    FIELD(rope_freq_base),
    FIELD(rope_freq_scale),
    FIELD(yarn_ext_factor),
    FIELD(yarn_attn_factor),
    FIELD(yarn_beta_fast),
    FIELD(yarn_beta_slow),
    FIELD(yarn_orig_ctx),
    FIELD(defrag_thold),
    FIELD(cb_eval),
    FIELD(cb_eval_user_data),
    FIELD(type_k),
    FIELD(type_v),
    FIELD(abort_callback),
    FIELD(abort_callback_data),
    FIELD(embeddings),
    FIELD(offload_kqv),
    FIELD(no_perf),
    FIELD(op_offload),
    FIELD(swa_full),
    FIELD(kv_unified),
    FIELD(ctx_other),
};
#undef FIELD

template <typename Params>
void apply(const Setters<Params> & setters, const char * structure, const Fields & fields, Params & params) {
    for (const auto & [name, value] : fields) {
        const auto found = setters.find(name);
        if (found == setters.end()) {
            std::string known;
            for (const auto & setter : setters) {
                known += (known.empty() ? "" : ", ") + setter.first;
            }
            throw InputError(std::string(structure) + " has no '" + name + "'; it knows: " + known);
        }
        if (!found->second(params, value)) {
            throw InputError(std::string(structure) + ": " + name + " cannot have this value");
        }
    }
}

template <size_t N> void copy(const std::string & text, char (&to)[N]) {
    if (text.size() >= N) {
        throw InputError("override_kv: '" + text + "' is longer than " + std::to_string(N - 1) + " bytes");
    }
    std::memcpy(to, text.c_str(), text.size() + 1);
}

constexpr const char * weights = "(weight|bias)$";

// Returns the beginning of a pattern of the names of these layers' experts.
std::string experts_of(const std::vector<int> & layers) {
    std::string numbers;
    for (const int layer : layers) {
        numbers += (numbers.empty() ? "" : "|") + std::to_string(layer);
    }
    return "^blk\\.(" + numbers + ")\\.ffn_(up|down|gate|gate_up)_(ch)?exps\\.";
}

} // namespace

void set_fields(const Fields & fields, llama_model_params & params) {
    apply(model_fields, "llama_model_params", fields, params);
}

void set_fields(const Fields & fields, llama_context_params & params) {
    apply(context_fields, "llama_context_params", fields, params);
}

std::vector<llama_model_kv_override> entries_of(const Overrides & overrides) {
    std::vector<llama_model_kv_override> entries(overrides.size() + 1);
    for (size_t i = 0; i < overrides.size(); ++i) {
        auto & entry              = entries[i];
        const auto & [key, value] = overrides[i];
        copy(key, entry.key);
        if (const auto * flag = std::get_if<bool>(&value)) {
            entry.tag      = LLAMA_KV_OVERRIDE_TYPE_BOOL;
            entry.val_bool = *flag;
        } else if (const auto * whole = std::get_if<int64_t>(&value)) {
            entry.tag     = LLAMA_KV_OVERRIDE_TYPE_INT;
            entry.val_i64 = *whole;
        } else if (const auto * number = std::get_if<double>(&value)) {
            entry.tag     = LLAMA_KV_OVERRIDE_TYPE_FLOAT;
            entry.val_f64 = *number;
        } else {
            entry.tag = LLAMA_KV_OVERRIDE_TYPE_STR;
            copy(std::get<std::string>(value), entry.val_str);
        }
    }
    return entries;
}

const std::map<std::string, int> & llama_constants() {
    static const std::map<std::string, int> constants = {
        {"CONTEXT_TYPE_MTP", LLAMA_CONTEXT_TYPE_MTP},
        {"FLASH_ATTN_AUTO", LLAMA_FLASH_ATTN_TYPE_AUTO},
        {"FLASH_ATTN_DISABLED", LLAMA_FLASH_ATTN_TYPE_DISABLED},
        {"FLASH_ATTN_ENABLED", LLAMA_FLASH_ATTN_TYPE_ENABLED},
        {"LOAD_MODE_AUTO", LLAMA_LOAD_MODE_AUTO},
        {"LOAD_MODE_NONE", LLAMA_LOAD_MODE_NONE},
        {"LOAD_MODE_MMAP", LLAMA_LOAD_MODE_MMAP},
        {"LOAD_MODE_MLOCK", LLAMA_LOAD_MODE_MLOCK},
        {"LOAD_MODE_MMAP_MLOCK", LLAMA_LOAD_MODE_MMAP_MLOCK},
        {"LOAD_MODE_DIRECT_IO", LLAMA_LOAD_MODE_DIRECT_IO},
        {"ROPE_SCALING_UNSPECIFIED", LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED},
        {"ROPE_SCALING_NONE", LLAMA_ROPE_SCALING_TYPE_NONE},
        {"ROPE_SCALING_LINEAR", LLAMA_ROPE_SCALING_TYPE_LINEAR},
        {"ROPE_SCALING_YARN", LLAMA_ROPE_SCALING_TYPE_YARN},
    };
    return constants;
}

SlotLayers::SlotLayers() : entries_{{nullptr, nullptr}} {}

SlotLayers::~SlotLayers() = default;

void SlotLayers::add(const std::string & device, const std::vector<int> & layers) {
    auto * const memory = ggml_backend_dev_buffer_type(static_cast<ggml_backend_dev_t>(device_handle(device)));
    if (!layers.empty()) {
        put(experts_of(layers) + weights, expert_memory(device));
        put(experts_of(layers), memory); // tables of one number per expert
    }
}

void SlotLayers::keep_experts(const std::vector<int> & layers) {
    if (!layers.empty()) {
        put(experts_of(layers) + weights, ggml_backend_cpu_buffer_type());
    }
}

void SlotLayers::keep_output() { put("^(output|token_embd)", ggml_backend_cpu_buffer_type()); }

void SlotLayers::put(const std::string & pattern, ggml_backend_buffer_type_t memory) {
    patterns_.push_back(pattern);
    entries_.insert(entries_.end() - 1, {patterns_.back().c_str(), memory});
}

std::uintptr_t SlotLayers::address() const { return reinterpret_cast<std::uintptr_t>(entries_.data()); }

} // namespace spac
