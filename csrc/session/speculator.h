// Drafts with llama.cpp's common_speculative, and keeps the draft context in step with the target.
#pragma once

#include "core/not_copied.h"
#include "session/context.h"
#include "session/session.h"
#include "speculative.h"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace spac {

class Interrupt;

// The experts that the router of a draft model chose while it drafted. They predict what the target will choose when it
// verifies. Counts only what runs in note(): not the prompt, and not the batches that bring the draft model up to date.
class RouteLog {
  public:
    // `experts` are the draft model's. They count nothing outside note() from now on. If null, nothing can be kept.
    explicit RouteLog(std::shared_ptr<Experts> experts);

    bool can_keep() const { return experts_ != nullptr; }
    // Switches the log on or off. It is off at first, and costs nothing then.
    void keep(bool keeps);
    // Begins a new draft.
    void begin() { trim(0); }
    // Runs an evaluation of one token by the draft model, and appends what its layers chose. When the evaluation
    // returns, the context must have been synchronized, as sampling from it does: only then are wholly resident layers
    // counted.
    template <typename Evaluate> auto note(const Evaluate & evaluate) {
        const Counting counting(keeps_ ? experts_.get() : nullptr);
        auto           result = evaluate();
        append();
        return result;
    }
    // Drops the tokens from `n` on, which the target will not verify.
    void trim(int n);
    int  size() const { return routes_.n_tokens; }
    // Returns the routes, which are valid until the next change, or null if they are not kept.
    const DraftRoutes * get() const { return keeps_ ? &routes_ : nullptr; }

  private:
    class Counting : NotCopied {
      public:
        explicit Counting(Experts * experts);
        ~Counting();

      private:
        Experts * experts_;
    };

    void append();

    std::shared_ptr<Experts> experts_;
    bool                     keeps_ = false;
    DraftRoutes              routes_;
    std::vector<int32_t>     ids_, demand_; // scratch of append()
};

// Drafts with the target's own context, in a draft pass of its experts (MoE-SpeQ 3.4.1).
//
// The cells that a draft writes in the target's memory are taken back at its end. The verification writes them again,
// for accepted and rejected tokens alike, so the text is that without drafts.
class SelfDraft {
  public:
    // A draft stops before a token that is less probable than `p_min` (greedy_choice).
    SelfDraft(Context & target, std::shared_ptr<Experts> experts, float p_min, Interrupt & interrupt)
        : target_(target), experts_(std::move(experts)), p_min_(p_min), interrupt_(interrupt), batch_(target.get()) {}

    Context & target() const { return target_; }

    // Drafts at most `n_max` tokens that may follow `last`, the most probable ones. The target's memory holds all
    // tokens before `last`. Calls `on_token` for each, and notes its routes. If the call was stopped, throws what
    // stopped it.
    llama_tokens draft(llama_token last, int n_max, RouteLog & routes,
                       const std::function<void(llama_token, int)> & on_token);

  private:
    llama_token evaluate(llama_token token);

    Context &                target_;
    std::shared_ptr<Experts> experts_;
    float                    p_min_;
    Interrupt &              interrupt_;
    common_batch             batch_;
};

// Drafts the draft model's tokens one after the other. The memory of `draft` holds all tokens before `last`. Decodes
// and result are the same as those of common, because the draft is greedy and the memory carries over. But every token
// is known as soon as it exists, and a request to stop is seen in between. Stops before a token that `target` does not
// have, that ends the generation, or that is less probable than `p_min` (greedy_choice).
llama_tokens draft_stepwise(Context & draft, const Context & target, llama_token last, int n_max, float p_min,
                            RouteLog & routes, Interrupt & interrupt,
                            const std::function<void(llama_token, int)> & on_token);

// Cuts a draft to `n_max` tokens, and before a token that the target does not have or that ends the generation: what
// the target says after that is not part of the text. A draft of fewer than `n_min` tokens is dropped.
void trim_draft(llama_tokens & draft, const Context & target, int n_max, int n_min);

// With the type "self", the target's own context drafts (SelfDraft).
//
// Two families of llama.cpp's draft types need different care. Most (a draft model, n-grams) know the sequence by its
// tokens alone. They are brought up to date just before they draft, and what a draft model evaluated while it drafted
// is kept as far as it was accepted. The others (MTP, EAGLE-3, DFlash, …) read the target's hidden states: they must
// see every batch right after the target decoded it.
class Speculator : NotCopied {
  public:
    // `draft_experts` are the draft model's, or null. They are the target's if it drafts for itself. Throws InputError
    // for types, contexts and sizes that do not fit.
    Speculator(const DraftConfig & config, Context & target, llama_context * draft_ctx,
               std::shared_ptr<Experts> draft_experts, Interrupt & interrupt);
    ~Speculator();

    // Returns how many tokens may be given to observe() at once, at most.
    int n_batch() const;
    // Returns how many of the sequence's first `tokens` may be in the target's memory already when it continues from
    // there.
    int n_known(const llama_tokens & tokens) const;
    // Returns the draft's context, or null. A caller that changes its memory has to call cut() afterwards.
    Context * context() { return draft_ ? &*draft_ : nullptr; }
    // Returns the length of the longest draft that the types can make.
    int n_max() const { return n_max_; }

    // Cuts the sequence to its first `n` tokens, or begins it anew. Forgets what common learnt from the rest.
    void cut(const llama_tokens & tokens, int n);
    // Begins with a prompt. `prompt` is all of it but the last token, and the target has decoded it. Brings the draft
    // model there too, if `drafting`.
    void begin(const llama_tokens & prompt, bool drafting);
    // Follows the target, which continues from its first `n` tokens: it may have gone further back than the draft, to a
    // checkpoint.
    void follow(int n);
    // Reads `batch`, which the target has decoded.
    void observe(const common_batch & batch);
    // Drafts at most `n_max` tokens (> 0) that may follow `tokens` and then `last`. Calls `on_token` for each. If the
    // call was stopped, throws what stopped it.
    llama_tokens draft(const llama_tokens & tokens, llama_token last, int n_max,
                       const std::function<void(llama_token, int)> & on_token);
    // Switches routes() on or off from the next draft on. Throws InputError if they cannot be kept.
    void keep_routes(bool keeps);
    // Returns the routes of the draft under way, or of the last one; null unless they are kept.
    const DraftRoutes * routes() const { return routes_.get(); }
    // Notes that this step has no draft.
    void pass() { routes_.begin(); }
    // Notes that `n` tokens of the last draft were accepted, and that the sequence is now `tokens`. Must not be called
    // for an empty draft.
    void accept(int n, const llama_tokens & tokens);
    // Forgets the sequence.
    void clear();

  private:
    void         rebuild();
    void         catch_up(const llama_tokens & tokens);
    void         feed(const llama_token * tokens, int n, int pos);
    llama_tokens draft_once(const llama_tokens & tokens, llama_token last, llama_pos pos, int n_max);
    llama_tokens draft_at_once(const llama_tokens & tokens, llama_token last, int n_max);

    DraftConfig                                 config_;
    const Context &                             target_;
    std::optional<Context>                      draft_;
    Interrupt &                                 interrupt_;
    common_params_speculative                   params_;
    std::optional<enum common_speculative_type> model_type_; // the one type that uses the draft context
    bool                                        reads_states_ = false;
    bool                                        stepwise_     = false; // true for "draft-simple" alone
    int                                         n_max_        = 0;
    RouteLog                                    routes_;
    std::optional<SelfDraft>                    self_; // set if the target drafts for itself
    common_speculative_ptr                      spec_;
};

// ---- checks of the contexts and parameters that draft types need, before llama.cpp would abort on them
// (draft_types.cpp)

// Returns true if the target drafts for itself, in its own context: the type is spac's own "self". Throws InputError if
// others are named beside it.
bool drafts_itself(const DraftConfig & config);

// Returns llama.cpp's parameters; `types` is empty without a type. Throws InputError for unknown names, two types that
// would share the draft context, and sizes out of range.
common_params_speculative speculative_params(const DraftConfig & config);

// Returns the type that uses the draft context, if there is one.
std::optional<common_speculative_type> draft_model_type(const std::vector<common_speculative_type> & types);

// Throws InputError if `draft_ctx` cannot serve `type` for this target and `n_seq` sequences.
void check_draft_context(std::optional<common_speculative_type> type, const Context & target, llama_context * draft_ctx,
                         int n_max, int n_seq = 1);

// Throws InputError unless the target can draft for itself: its memory goes back to any place, and its experts have
// low-bit copies.
void check_self_draft(const Context & target, const std::shared_ptr<Experts> & experts);

// Throws InputError if the target cannot be rolled back after a verification with `n_max` drafted tokens. Decodes two
// tokens to find out, and leaves the memory empty.
void check_rollback(const Context & target, int n_max);

} // namespace spac
