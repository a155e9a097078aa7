#include "session/draft_types.h"

#include "../src/llama-context.h" // for n_outputs_max, which no public function returns
#include "../src/llama-ext.h"     // for ids of the target's layers that EAGLE-3 and DFlash drafts read

#include <algorithm>
#include <string>

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

void check_target_layers(const std::string & name, const llama_model * target, const llama_model * draft) {
    const int    n_layer = llama_model_n_layer(target);
    const auto   n_ids   = llama_model_target_layer_ids_n(draft);
    const auto * ids     = llama_model_target_layer_ids(draft);
    if (n_ids == 0 || ids == nullptr) {
        throw InputError(name + ": the draft model names no layers of a target, so it is of another kind");
    }
    for (uint32_t i = 0; i < n_ids; ++i) {
        // An id of n_layer stands for the output of the last layer.
        if (ids[i] < 0 || ids[i] > n_layer) {
            throw InputError(name + ": the draft model reads layer " + std::to_string(ids[i]) +
                             " of its target, which has " + std::to_string(n_layer) + " layers");
        }
    }
}

void check_draft(common_speculative_type type, const llama_context * target_ctx, llama_context * draft_ctx) {
    const auto         name   = common_speculative_type_to_str(type);
    const auto * const target = llama_get_model(target_ctx);
    const auto * const draft  = llama_get_model(draft_ctx);
    const int          width = llama_model_n_embd_out(draft), expected = llama_model_n_embd_out(target);
    if (llama_get_memory(draft_ctx) == nullptr) {
        throw InputError("the draft model keeps no memory of a sequence and cannot draft");
    }
    if (type == COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE) {
        if (common_context_can_seq_rm(draft_ctx) != COMMON_CONTEXT_SEQ_RM_TYPE_PART) {
            throw InputError("the draft model's memory is recurrent and cannot take back rejected tokens: choose a "
                             "draft model with attention only, or an n-gram draft type");
        }
    } else if (type != COMMON_SPECULATIVE_TYPE_DRAFT_MTP) {
        check_target_layers(name, target, draft);
    } else if (width != expected) {
        throw InputError(name + ": the draft's embeddings have width " + std::to_string(width) + ", the target's " +
                         std::to_string(expected));
    }
}

// Throws InputError if a batch of the context may want more rows of logits than it has. A context that makes embeddings
// has a row for every token.
void check_rows(const llama_context * ctx, const std::string & role, uint32_t n_wanted) {
    const auto &   cparams = ctx->get_cparams();
    const uint32_t n       = cparams.embeddings ? cparams.n_batch : n_wanted;
    if (n > cparams.n_outputs_max) {
        throw InputError("the " + role + " context has room for " + std::to_string(cparams.n_outputs_max) +
                         " rows of logits, and " + std::to_string(n) +
                         " are needed: make it with n_outputs_max of at " + "least " + std::to_string(n));
    }
}

} // namespace

bool drafts_itself(const DraftConfig & config) { return config.types == std::vector<std::string>{self_type}; }

common_params_speculative speculative_params(const DraftConfig & config) {
    common_params_speculative params;
    params.types.clear();
    for (const auto & name : config.types) {
        if (name == self_type) {
            continue;
        }
        const auto type = common_speculative_type_from_name(name);
        if (type == COMMON_SPECULATIVE_TYPE_COUNT) {
            throw InputError("unknown draft type '" + name + "'");
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
    params.draft.n_min = config.n_min;
    params.draft.p_min = config.p_min;
    return params;
}

void check_contexts(const SessionConfig & config, int n_slots) {
    const auto * const target = static_cast<llama_context *>(config.target_ctx);
    auto * const       draft  = static_cast<llama_context *>(config.draft_ctx);
    if (target == nullptr || llama_get_memory(target) == nullptr) {
        throw InputError("the target keeps no memory of a sequence, as embedding and diffusion models do, and cannot "
                         "generate");
    }
    const auto types  = speculative_params(config.draft).types;
    const bool drafts = drafts_itself(config.draft) || !types.empty();
    const auto n_seq  = static_cast<uint32_t>(n_slots);
    check_rows(target, "target", n_seq * static_cast<uint32_t>(1 + (drafts ? config.draft.n_max : 0)));
    const auto type = std::find_if(types.begin(), types.end(), uses_draft_context);
    if (type != types.end() && draft != nullptr) {
        check_draft(*type, target, draft);
        check_rows(draft, "draft", n_seq);
    }
}

} // namespace spac
