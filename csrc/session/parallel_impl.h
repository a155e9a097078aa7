// The drafts of the sequences of llama.cpp's loop.
#pragma once

#include "core/not_copied.h"
#include "session/context.h"
#include "session/interrupt.h"
#include "session/session.h"
#include "session/speculator.h"

#include <memory>
#include <vector>

namespace spac {

// The drafts of several sequences. A draft model has a context of as many sequences as the target, and drafts for all
// in one batch a token. N-grams and "self" look at one sequence alone, so each has a Speculator of its own.
class ParallelDrafts : NotCopied {
  public:
    // `targets` are the sequences of the target's context. Throws InputError for types and contexts that do not fit.
    ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets, llama_context * draft_ctx,
                   Interrupt & interrupt);
    // The drafts of one sequence, whose draft model, or the target with "self", drafts token by token. `target` need
    // not know what its memory holds: draft() tells it, and drafts nothing where that is not the request's tokens.
    // `draft_experts` are those of Speculator.
    ParallelDrafts(const DraftConfig & config, Context & target, llama_context * draft_ctx,
                   std::shared_ptr<Experts> draft_experts, Interrupt & interrupt);
    ~ParallelDrafts();

    struct Request {
        size_t               index = 0; // of the sequence
        const llama_tokens * tokens;    // the history
        llama_token          last;
        int                  n_max;
        llama_tokens *       draft; // the result
    };

    // The oldest sequence comes first. Sequences for which the draft's memory has no room get no draft. With one
    // sequence, calls `on_token` for each token, as Speculator does.
    void draft(const std::vector<Request> & requests, const std::function<void(llama_token, int)> & on_token = {});
    // Switches routes() on or off. Throws InputError if they cannot be kept.
    void keep_routes(bool keeps);
    // Returns the routes of the last draft of the only sequence, or null if they are not kept.
    const DraftRoutes * routes() const { return lookups_.size() == 1 ? lookups_.front()->routes() : nullptr; }
    // Notes that this step has no draft.
    void pass();
    // Notes that `n` tokens of the sequence's last draft were accepted. Must not be called for an empty draft.
    void accept(size_t index, int n, const llama_tokens & tokens);

  private:
    std::vector<Request> that_fit(const std::vector<Request> & requests);
    int                  n_used() const;
    void                 feed(const std::vector<Request> & requests);

    DraftConfig                              config_;
    std::vector<Context *>                   targets_;
    Interrupt &                              interrupt_;
    std::vector<std::unique_ptr<Speculator>> lookups_;          // n-grams; empty with a draft model
    std::vector<Context>                     drafts_;           // the draft model's sequences; empty without one
    bool                                     is_told_  = false; // true: "self" with a target that is not told
    int                                      capacity_ = 0;     // tokens that all of these hold together
    common_params_speculative                params_;
    common_speculative_ptr                   spec_;
};

} // namespace spac
