// The speculative session: one sequence of tokens on a target context. llama.cpp's `common` library drafts with any of
// its types (a draft model, n-grams, …), the target verifies, and sampling is lossless.
//
// This header is the public interface of the room. It names no llama.cpp type, so that the bindings can include it
// alone. Contexts arrive as untyped pointers because Python makes them through llama-cpp-python's ctypes interface.
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

// A call was stopped by cancel(). The session is consistent: the same call can be made again, and continues where it
// was.
class Cancelled : public Error {
  public:
    using Error::Error;
};

// Settings of drafting. Names and defaults are llama.cpp's.
struct DraftConfig {
    std::vector<std::string> types;             // as in draft_types(); empty or "none": no speculation
    int                      n_max        = 16; // the longest draft, and the draft length at first
    int                      n_min        = 0;  // shorter drafts are not used
    float                    p_min        = 0;  // a draft model stops at a token with a lower probability
    int                      ngram_size_n = 12; // ngram-simple, ngram-map-*: tokens to look up
    int                      ngram_size_m = 48; // ngram-simple, ngram-map-*: tokens to propose (draft length cuts them)
    int                      ngram_mod_n_match = 24;
    int                      ngram_mod_n_min   = 48;
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

// The caller owns the contexts, and keeps them and their models alive until the session is gone. They belong to the
// session meanwhile: it clears their memory at the start and sets their abort callbacks. Between its calls the caller
// may use the target otherwise, if it calls adopt() before the next prefill.
struct SessionConfig {
    void *                     target_ctx = nullptr; // llama_context *
    void *                     draft_ctx  = nullptr; // llama_context * or null
    std::shared_ptr<Experts>   experts;              // the target's; null: no demand is counted
    std::shared_ptr<Experts>   draft_experts;        // the draft's; null: its routes are not known
    std::shared_ptr<Projector> projector;            // reads the images of prompts; null: prompts have none
    std::shared_ptr<Trace>     trace;                // steps are recorded here; null: in the experts' trace
    DraftConfig                draft;
    SamplingConfig             sampling;
    // Host memory for sequences that are left for others. A prompt that continues one does not evaluate it again. 0
    // keeps none.
    size_t prompt_cache_bytes = 0;
    // The number of states of the sequence that are kept for a memory that cannot go back: a recurrent one or one with
    // a window. They are kept at the end of prompts, and at least `checkpoint_step` tokens apart within them. With 0,
    // such a memory is cleared instead.
    int n_checkpoints   = 0;
    int checkpoint_step = 8192;
};

enum class StopReason {
    none,
    stop,   // the last token ends the generation
    length, // the context is full: no further token fits
};

const char * to_string(StopReason reason); // "", "stop", "length"

// The result of one step.
struct Step {
    std::vector<int32_t> tokens;         // accepted draft tokens, then the target's own
    int                  n_drafted  = 0; // draft tokens that were verified
    int                  n_accepted = 0; // draft tokens that were accepted
    int                  n_verified = 0; // tokens in the verification batch: n_drafted + 1
    int                  n_steps    = 0; // 0 if there was no place for one
    int64_t              draft_ns   = 0;
    int64_t              verify_ns  = 0;
    int64_t              sample_ns  = 0;
    StopReason           reason     = StopReason::none;
    // demand[n_layer * n_expert] of this verification. It is in the session's one buffer, which the next step
    // overwrites. Null without experts.
    std::shared_ptr<const std::vector<int32_t>> demand;
    int                                         n_layer  = 0;
    int                                         n_expert = 0;
    // layer_costs[n_layer] of this verification. The next step overwrites these too.
    std::shared_ptr<const std::vector<LayerCost>> layer_costs;
    // Experts copied into slots since the step before was verified: their number, their bytes, and the time that it
    // took.
    uint64_t n_uploads    = 0;
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

// Callbacks, on the thread that runs the session. A listener may throw: the exception leaves step(), and the session
// stays consistent (see Session::step). It may call set_draft_length() and cancel(), and nothing else.
struct Listeners {
    // Called for a draft token as soon as it is known; `index` counts from 0 in this draft. With "draft-simple" alone,
    // that is while the draft model still drafts. Other types draft in one call, and their tokens come together after
    // it. `routes` is null unless draft_routes is set, and is valid during the call. Drafts of several slots of a loop
    // follow one another, as ParallelDrafts::OnToken says.
    std::function<void(int32_t token, int index, const DraftRoutes * routes)>                       draft_token;
    std::function<void(const std::vector<int32_t> & draft, int64_t ns, const DraftRoutes * routes)> draft_end;
    std::function<void(const Step & step)>                                                          verify_end;
    // Called when an MoE layer of the running verification has been computed; demand[n_expert] is what it was asked
    // for. An exception leaves step() once the verification has ended, with the sequence as it was. There are no calls
    // for the further layers then.
    std::function<void(int layer, const std::vector<int32_t> & demand)> verify_layer;
    // Called before each piece of a prompt's text. Returns the number of tokens of its graphs. If that is more than the
    // target's graphs had when the session was made, the piece is one such graph. `n_pending` tokens have to be
    // evaluated. `n_failed` is 0, or the size for which there was no memory; the call then fails unless the result is
    // smaller.
    std::function<int(int n_pending, int n_failed)> prompt_graph;
    // Called when a prompt that ends with text was evaluated. Experts::routes() has the routes of its last tokens:
    // those of the last graph, at most 32.
    std::function<void()> prompt_tail;
    // Called now and then while the library works, so that the host language can see signals. An exception stops the
    // call.
    std::function<void()> interrupt_check;
    // Keeps the draft's routes. This needs "draft-simple" alone with draft_experts, or "self".
    bool draft_routes = false;
};

// A session is for one thread at a time: a call made while another runs throws InputError. cancel() may be called at
// any time.
class Session : NotCopied {
  public:
    // Throws InputError for contexts, draft types or sampling parameters that cannot work together.
    explicit Session(const SessionConfig & config);
    ~Session();

    // Called after each piece of a prompt: a large graph, or several small ones. It may throw.
    using Progress = std::function<void(int n_done, int n_total)>;

    // Makes `tokens` (all of the sequence, at least one) the context of what is generated next. Evaluates all but the
    // last, which the next step verifies, and keeps what the memory already holds. Starts the sampler anew. If
    // cancelled, what was evaluated stays, and the next prefill or step continues from there. The sampler has seen all
    // but the first `n_unseen` tokens; penalties look back on what it has seen. `images` are those among the tokens. A
    // sequence with images is continued without drafts, because a draft model cannot see.
    void prefill(const int32_t * tokens, size_t n_tokens, const Progress & progress = {}, size_t n_unseen = 0,
                 std::shared_ptr<const ImagePrompt> images = nullptr);

    // Takes over what somebody else evaluated or dropped on the target context since the last call: its memory begins
    // with these tokens. Drops what follows them there. n_past() tells how many of them are really there. The next call
    // must be prefill().
    void adopt(const int32_t * tokens, size_t n_tokens);

    // Sets how to sample from the next prefill on. Throws InputError for invalid settings, and changes nothing then.
    void set_sampling(const SamplingConfig & sampling);

    // Drafts, verifies and accepts. The result has at least one token, unless its reason is `length`. An exception
    // before verification (cancelled, or a listener's) leaves the sequence as it was. An exception of the verify_end
    // listener comes after the tokens were committed: last_step() has them. The reference is valid until the next step.
    const Step & step();
    const Step & last_step() const;

    // Returns how probable the target held the last step's tokens, each where it came, and the `n_top` most probable
    // ones there. Throws InputError once the logits are gone: before the first step, and from the next prefill() or
    // adopt() on.
    TokenProbabilities probabilities(int n_top);

    // Forgets all tokens, and a cancel() that no call has seen yet.
    void reset();

    // Stops the call that runs (at the next node of a CPU graph, else between pieces), or the next one if none does: it
    // throws Cancelled. May be called from any thread, also from a signal handler.
    void cancel() noexcept;

    // Sets the draft length from the next step on; 0 is plain decoding. Throws InputError outside [0, draft_max].
    void set_draft_length(int n);
    int  draft_length() const;
    int  draft_max() const;

    // Throws InputError if draft_routes cannot be had, and changes nothing then.
    void set_listeners(const Listeners & listeners);

    // Returns how many tokens of the last prompt were there already.
    int n_reused() const;
    // Other sequences that are kept in host memory, and how often since the start one was stored and recalled.
    struct Cached {
        int    n_prompts = 0;
        size_t bytes     = 0;
        int    n_stored = 0, n_recalled = 0;
    };
    Cached cached() const;

    int                  n_past() const; // tokens in the target's memory
    int                  n_ctx() const;
    std::vector<int32_t> tokens() const; // the whole sequence, with those not evaluated yet

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

// Returns one line that says why `target_model` cannot verify drafts of `draft_model` (both llama_model *), or nothing
// if it can.
std::optional<std::string> vocab_mismatch(const void * target_model, const void * draft_model);

// Returns the draft types that llama.cpp knows, and spac's own, with which the target drafts for itself.
std::vector<std::string> draft_types();

} // namespace spac
