#include "session/speculator.h"

#include "../src/llama-ext.h" // for ids of the target's layers that EAGLE-3 and DFlash drafts read

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

namespace {

constexpr common_speculative_type model_types[] = {
    COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE, COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3, COMMON_SPECULATIVE_TYPE_DRAFT_MTP,
    COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH, COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK,
};

constexpr const char * self_type = "self"; // the target drafts for itself

bool uses_draft_context(common_speculative_type type) {
    return std::find(std::begin(model_types), std::end(model_types), type) != std::end(model_types);
}

// Returns true if a draft is one batch with logits for every token. The others decode one token after the other.
bool drafts_at_once(common_speculative_type type) {
    return type == COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH || type == COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK;
}

std::string known_types() {
    std::string names;
    for (const auto & name : draft_types()) {
        names += (names.empty() ? "" : ", ") + name;
    }
    return names;
}

void check_range(const char * name, int value, int low, int high) {
    if (value < low || value > high) {
        throw InputError(std::string(name) + " is " + std::to_string(value) + ", expected a value from " +
                         std::to_string(low) + " to " + std::to_string(high));
    }
}

void check_config(const DraftConfig & config) {
    constexpr int longest = 1 << 14; // common has 16 bits for sizes
    check_range("draft_max", config.n_max, 0, longest);
    check_range("draft_min", config.n_min, 0, longest);
    check_range("ngram_size_n", config.ngram_size_n, 1, 1024);
    check_range("ngram_size_m", config.ngram_size_m, 1, 1024);
    check_range("ngram_mod_n_match", config.ngram_mod_n_match, 1, 1024);
    check_range("ngram_mod_n_min", config.ngram_mod_n_min, 0, 1024);
    if (!(config.p_min >= 0 && config.p_min <= 1)) {
        throw InputError("p_min is " + std::to_string(config.p_min) + ", expected a value from 0 to 1");
    }
}

void check_target_layers(const char * name, const Context & target, const llama_model * draft) {
    const int    n_layer = llama_model_n_layer(target.model());
    const auto   n_ids   = llama_model_target_layer_ids_n(draft);
    const auto * ids     = llama_model_target_layer_ids(draft);
    if (n_ids == 0 || ids == nullptr) {
        throw InputError(std::string(name) + ": the draft model names no layers of a target, so it is of another kind");
    }
    for (uint32_t i = 0; i < n_ids; ++i) {
        // An id of n_layer stands for the output of the last layer.
        if (ids[i] < 0 || ids[i] > n_layer) {
            throw InputError(std::string(name) + ": the draft model reads layer " + std::to_string(ids[i]) +
                             " of its target, which has " + std::to_string(n_layer) + " layers");
        }
    }
}

void check_draft_model(common_speculative_type type, const Context & target, const Context & draft) {
    const auto name = common_speculative_type_to_str(type);
    switch (type) {
    case COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE:
        if (const auto reason = vocab_mismatch(target.model(), draft.model())) {
            throw InputError("the draft's vocabulary does not fit the target's: " + *reason);
        }
        if (common_context_can_seq_rm(draft.get()) != COMMON_CONTEXT_SEQ_RM_TYPE_PART) {
            throw InputError("the draft model's memory is recurrent and cannot take back rejected tokens: choose a "
                             "draft model with attention only, or an n-gram draft type");
        }
        break;
    case COMMON_SPECULATIVE_TYPE_DRAFT_MTP:
        if (llama_model_n_layer_nextn(draft.model()) < 1 && llama_get_ctx_other(draft.get()) != target.get()) {
            throw InputError(name + ": the draft model predicts no further tokens (it has no MTP layers)");
        }
        if (llama_model_n_embd_out(draft.model()) != llama_model_n_embd_out(target.model())) {
            throw InputError(name + ": the draft's embeddings have width " +
                             std::to_string(llama_model_n_embd_out(draft.model())) + ", the target's " +
                             std::to_string(llama_model_n_embd_out(target.model())));
        }
        break;
    case COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3:
    case COMMON_SPECULATIVE_TYPE_DRAFT_DFLASH:
    case COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK:
        check_target_layers(name.c_str(), target, draft.model());
        break;
    default:
        break;
    }
}

} // namespace

std::vector<std::string> draft_types() {
    std::vector<std::string> names;
    for (int i = 0; i < COMMON_SPECULATIVE_TYPE_COUNT; ++i) {
        names.push_back(common_speculative_type_to_str(static_cast<common_speculative_type>(i)));
    }
    names.emplace_back(self_type);
    return names;
}

bool drafts_itself(const DraftConfig & config) {
    const bool self = std::find(config.types.begin(), config.types.end(), self_type) != config.types.end();
    if (self && config.types.size() > 1) {
        throw InputError("the draft type self cannot be used together with others: name it alone");
    }
    return self;
}

common_params_speculative speculative_params(const DraftConfig & config) {
    check_config(config);
    common_params_speculative params;
    params.types.clear();
    for (const auto & name : config.types) {
        if (name == self_type) {
            continue;
        }
        const auto type = common_speculative_type_from_name(name);
        if (type == COMMON_SPECULATIVE_TYPE_COUNT) {
            throw InputError("unknown draft type '" + name + "', known are " + known_types());
        }
        const bool is_new = std::find(params.types.begin(), params.types.end(), type) == params.types.end();
        if (type != COMMON_SPECULATIVE_TYPE_NONE && is_new) {
            params.types.push_back(type);
        }
    }
    if (std::count_if(params.types.begin(), params.types.end(), uses_draft_context) > 1) {
        throw InputError("the draft types " + common_speculative_type_name_str(params.types) +
                         " would share one draft context: name one of the draft-* types");
    }
    params.draft.n_max = config.n_max;
    params.draft.n_min = 0; // Speculator::draft applies it
    params.draft.p_min = config.p_min;
    for (auto * const map : {&params.ngram_simple, &params.ngram_map_k, &params.ngram_map_k4v}) {
        map->size_n = static_cast<uint16_t>(config.ngram_size_n);
        map->size_m = static_cast<uint16_t>(config.ngram_size_m);
    }
    params.ngram_mod.n_match = config.ngram_mod_n_match;
    params.ngram_mod.n_min   = config.ngram_mod_n_min;
    return params;
}

std::optional<common_speculative_type> draft_model_type(const std::vector<common_speculative_type> & types) {
    const auto found = std::find_if(types.begin(), types.end(), uses_draft_context);
    return found == types.end() ? std::nullopt : std::make_optional(*found);
}

void check_draft_context(std::optional<common_speculative_type> type, const Context & target, llama_context * draft_ctx,
                         int n_max, int n_seq) {
    if (!type) {
        return;
    }
    const auto name = common_speculative_type_to_str(*type);
    if (draft_ctx == nullptr) {
        throw InputError("the draft type " + name + " needs a draft context, got none");
    }
    if (draft_ctx == target.get()) {
        throw InputError("the draft context is the target's own: the draft needs a context of its own");
    }
    if (llama_get_memory(draft_ctx) == nullptr) {
        throw InputError("the draft model keeps no memory of a sequence and cannot draft");
    }
    const Context draft(draft_ctx, "draft");
    if (static_cast<int>(llama_n_seq_max(draft_ctx)) != n_seq) {
        throw InputError("the draft context is for " + std::to_string(llama_n_seq_max(draft_ctx)) +
                         " sequences, expected n_seq_max=" + std::to_string(n_seq));
    }
    if (draft.n_ctx() < target.n_ctx()) {
        throw InputError("the draft context holds " + std::to_string(draft.n_ctx()) + " tokens and the target's " +
                         std::to_string(target.n_ctx()) + ": make the draft's n_ctx at least as large");
    }
    if (draft.n_batch() < n_max + 1) {
        throw InputError("a draft of " + std::to_string(n_max) +
                         " tokens needs a draft context with n_batch of at least " + std::to_string(n_max + 1) +
                         ", it has " + std::to_string(draft.n_batch()));
    }
    draft.check_rows(draft.n_batch(), drafts_at_once(*type) ? n_max + 1 : n_seq);
    check_draft_model(*type, target, draft);
}

void check_self_draft(const Context & target, const std::shared_ptr<Experts> & experts) {
    if (Context::has_recurrent_model(target.get())) {
        throw InputError("the target's memory is recurrent and cannot take back what it drafts for itself: choose "
                         "another draft type");
    }
    if (!experts) {
        throw InputError("a target that drafts for itself needs experts on a device");
    }
    if (experts->draft_bytes() == 0) {
        throw InputError("the draft type self needs low-bit copies of the target's experts: attach them first");
    }
}

void check_rollback(const Context & target, int n_max) {
    switch (common_context_can_seq_rm(target.get())) {
    case COMMON_CONTEXT_SEQ_RM_TYPE_PART:
        return;
    case COMMON_CONTEXT_SEQ_RM_TYPE_RS: {
        const int n_rs = static_cast<int>(llama_n_rs_seq(target.get()));
        if (n_rs < n_max) {
            throw InputError("the target's recurrent memory can take back " + std::to_string(n_rs) +
                             " tokens: make the context with n_rs_seq of at least the longest draft, " +
                             std::to_string(n_max));
        }
        return;
    }
    default:
        throw InputError("the target's memory is recurrent and cannot take back rejected tokens: use draft length 0, "
                         "or n_rs_seq where the model supports it");
    }
}

} // namespace spac
