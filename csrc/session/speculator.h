// Drafting: llama.cpp's common_speculative and the draft context, kept in step with the target.
#pragma once

#include "session/context.h"
#include "session/route_log.h"
#include "session/session.h"
#include "speculative.h"

#include <functional>
#include <memory>
#include <optional>

namespace spac {

class Interrupt;

// Two families of draft types need different care. Most know the sequence by its tokens alone (a draft model, n-grams):
// they are brought up to date just before they draft, and what a draft model evaluated while it drafted is kept as far
// as it was accepted. The others (MTP, EAGLE-3, DFlash, …) read the target's hidden states: they must see every batch
// right after the target decoded it.
class Speculator {
  public:
    // `draft_experts`: the draft model's, or null. Throws InputError for types, contexts and sizes that do not fit.
    Speculator(const DraftConfig & config, const Context & target, llama_context * draft_ctx,
               std::shared_ptr<Experts> draft_experts, Interrupt & interrupt);
    ~Speculator();
    Speculator(const Speculator &)             = delete;
    Speculator & operator=(const Speculator &) = delete;

    // The most tokens that may be given to observe() at once.
    int n_batch() const;
    // How many of the sequence's first `tokens` may be in the target's memory already when it goes on from there.
    int n_known(const llama_tokens & tokens) const;
    // The draft's, or null: its memory may be changed if cut() comes behind it.
    Context * context() { return draft_ ? &*draft_ : nullptr; }
    // The longest draft that the types can make.
    int n_max() const { return n_max_; }

    // The sequence is cut to its first `n` tokens, or begins anew: what common learnt from the rest is forgotten.
    void cut(const llama_tokens & tokens, int n);
    // The target has decoded all of the prompt but its last token, `prompt`. Brings the draft model there too, if
    // `drafting`.
    void begin(const llama_tokens & prompt, bool drafting);
    // The target goes on from its first `n` tokens: it may have gone further back than the draft, to a checkpoint.
    void follow(int n);
    // The target has decoded `batch`.
    void observe(const common_batch & batch);
    // Drafts at most `n_max` tokens (> 0) that may follow `tokens` and then `last`. `on_token` is called for each.
    // Throws what stopped it.
    llama_tokens draft(const llama_tokens & tokens, llama_token last, int n_max,
                       const std::function<void(llama_token, int)> & on_token);
    // Whether routes() is kept, from the next draft on. Throws InputError where it cannot be.
    void keep_routes(bool keeps);
    // Of the draft under way, or of the last; null unless they are kept.
    const DraftRoutes * routes() const { return routes_.get(); }
    // This step has no draft.
    void pass() { routes_.begin(); }
    // Of the last draft, `n` tokens were accepted; the sequence is now `tokens`. Not to be called for an empty draft.
    void accept(int n, const llama_tokens & tokens);
    // Forgets the sequence.
    void clear();

  private:
    void         rebuild();
    void         catch_up(const llama_tokens & tokens);
    void         feed(const llama_token * tokens, int n, int pos);
    llama_tokens draft_once(const llama_tokens & tokens, llama_token last, llama_pos pos, int n_max);
    llama_tokens draft_at_once(const llama_tokens & tokens, llama_token last, int n_max);
    llama_tokens draft_stepwise(const llama_tokens & tokens, llama_token last, int n_max,
                                const std::function<void(llama_token, int)> & on_token);

    DraftConfig                                 config_;
    const Context &                             target_;
    std::optional<Context>                      draft_;
    Interrupt &                                 interrupt_;
    common_params_speculative                   params_;
    std::optional<enum common_speculative_type> model_type_; // the one type that uses the draft context
    bool                                        reads_states_ = false;
    bool                                        stepwise_     = false; // "draft-simple" alone
    int                                         n_max_        = 0;
    RouteLog                                    routes_;
    common_speculative_ptr                      spec_;
};

} // namespace spac
