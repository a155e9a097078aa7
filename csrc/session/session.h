// The settings, results and events of llama.cpp's loop with spac's hooks (csrc/hooks).
//
// This header names no llama.cpp type, so that the bindings can include it alone. Contexts arrive as untyped pointers
// because Python makes them.
#pragma once

#include "backend/experts/experts.h"
#include "core/error.h"
#include "core/not_copied.h"
#include "session/chat_format.h"
#include "session/projector.h"
#include "session/token_probabilities.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace spac {

// Settings of drafting. Names and defaults are llama.cpp's.
struct DraftConfig {
    std::vector<std::string> types;      // llama.cpp's names, or "self"; empty or "none": no speculation
    int                      n_max = 16; // the longest draft, and the draft length at first
    int                      n_min = 0;  // shorter drafts are not used
    float                    p_min = 0;  // a draft model stops at a token with a lower probability
};

// Settings of sampling the target's tokens. Names and defaults are llama.cpp's; temp <= 0 is greedy.
struct SamplingConfig {
    std::optional<uint32_t>                 seed; // absent: a random one
    float                                   temp               = 0.8f;
    int                                     top_k              = 40;
    float                                   top_p              = 0.95f;
    float                                   min_p              = 0.05f;
    float                                   typ_p              = 1.0f;
    float                                   top_n_sigma        = -1.0f;
    float                                   xtc_probability    = 0.0f;
    float                                   xtc_threshold      = 0.1f;
    float                                   dynatemp_range     = 0.0f;
    float                                   dynatemp_exponent  = 1.0f;
    int                                     repeat_last_n      = 64; // -1: the whole context
    float                                   repeat_penalty     = 1.0f;
    float                                   frequency_penalty  = 0.0f;
    float                                   presence_penalty   = 0.0f;
    float                                   dry_multiplier     = 0.0f;
    float                                   dry_base           = 1.75f;
    int                                     dry_allowed_length = 2;
    int                                     dry_penalty_last_n = 64; // -1: the whole context
    int                                     mirostat           = 0;
    float                                   mirostat_lr        = 0.1f;
    float                                   mirostat_ent       = 5.0f;
    bool                                    mirostat_penalizes = false; // true: behind penalties, as in llama_cpp
    std::string                             grammar;                    // GBNF
    std::map<int32_t, float>                logit_bias;
    bool                                    ignore_eos = false;
    std::optional<std::vector<std::string>> samplers; // absent: llama.cpp's order
    std::shared_ptr<ChatPrompt>             chat;     // the prompt whose format the answer has to follow, or null
    int                                     reasoning_budget = -1; // tokens, with `chat`; -1: no limit
};

// The objects that a loop runs on. The caller owns the contexts, and keeps them and their models alive until the loop
// is gone.
struct SessionConfig {
    void *                     target_ctx = nullptr; // llama_context *
    void *                     draft_ctx  = nullptr; // llama_context * or null
    std::shared_ptr<Experts>   experts;              // the target's; null: no demand is counted
    std::shared_ptr<Experts>   draft_experts;        // the draft's; null: its routes are not known
    std::shared_ptr<Projector> projector;            // reads the images of prompts; null: prompts have none
    std::shared_ptr<Trace>     trace;                // steps are recorded here
    DraftConfig                draft;
    SamplingConfig             sampling;
    size_t                     prompt_cache_bytes = 0; // host memory for sequences that are left for others
    // The number of states of a sequence that are kept for a memory that cannot go back: a recurrent one or one with a
    // window. They are at least `checkpoint_step` tokens apart within a prompt.
    int n_checkpoints   = 0;
    int checkpoint_step = 8192;
};

// The result of one step.
struct Step {
    std::vector<int32_t> tokens;         // accepted draft tokens, then the target's own
    int                  n_drafted  = 0; // draft tokens that were verified
    int                  n_accepted = 0; // draft tokens that were accepted
    int                  n_verified = 0; // tokens in the verification batch
    int                  n_steps    = 0; // 0 if this was no verification
    int64_t              draft_ns   = 0;
    int64_t              verify_ns  = 0;
    int64_t              sample_ns  = 0;
    // demand[n_layer * n_expert] of this verification. It is in the loop's one buffer, which the next step
    // overwrites. Null without experts.
    std::shared_ptr<const std::vector<int32_t>> demand;
    int                                         n_layer  = 0;
    int                                         n_expert = 0;
    // layer_costs[n_layer] of this verification. The next step overwrites these too.
    std::shared_ptr<const std::vector<LayerCost>> layer_costs;
    // Experts copied into slots since the step before was verified: their bytes, and the time that it took.
    uint64_t upload_bytes = 0;
    uint64_t upload_ns    = 0;
};

// The experts that the router of a draft model chose for the tokens that the target is about to verify, in their order.
// The first token is the one before the draft. A draft model evaluates a token to find the next. So nothing is known of
// the last drafted one, unless the draft ended at a token that was not to be part of it.
struct DraftRoutes {
    int                  n_tokens = 0, n_layer = 0, n_used = 0;
    std::vector<int32_t> ids; // [n_tokens * n_layer * n_used], -1 where a layer has fewer
};

// Callbacks, on the loop's thread.
struct Listeners {
    // Called for a token of spac's own drafts as soon as it is known. `routes` is null unless draft_routes is set, and
    // is valid during the call. Drafts of several slots follow one another, as ParallelDrafts::OnToken says.
    std::function<void(int32_t token, int index, const DraftRoutes * routes)>                       draft_token;
    std::function<void(const std::vector<int32_t> & draft, int64_t ns, const DraftRoutes * routes)> draft_end;
    std::function<void(const Step & step)>                                                          verify_end;
    // Called when an MoE layer of the running verification has been computed; demand[n_expert] is what it was asked
    // for. There are no calls for the further layers after an exception.
    std::function<void(int layer, const std::vector<int32_t> & demand)> verify_layer;
    // Called before each chunk of a prompt's text. Returns the number of tokens of its graphs. If that is more than the
    // target's graphs had when the loop was made, the chunk is one such graph. `n_pending` tokens have to be
    // evaluated. `n_failed` is 0, or the size for which there was no memory; the call then fails unless the result is
    // smaller.
    std::function<int(int n_pending, int n_failed)> prompt_graph;
    // Called when a prompt that ends with text was evaluated. Experts::routes() has the routes of its last tokens:
    // those of the last graph, at most 32.
    std::function<void()> prompt_tail;
    // Keeps the draft's routes, which "draft-simple" alone with draft_experts and "self" have.
    bool draft_routes = false;
};

// Throws InputError for contexts with which a loop of `n_slots` could not draft and verify: llama.cpp would abort
// later.
void check_contexts(const SessionConfig & config, int n_slots);

// Returns one line that says why `target_model` cannot verify drafts of `draft_model` (both llama_model *), or nothing
// if it can.
std::optional<std::string> vocab_mismatch(const void * target_model, const void * draft_model);

} // namespace spac
