// The drafts of the sequences of llama.cpp's loop.
#pragma once

#include "core/not_copied.h"
#include "session/context.h"
#include "session/interrupt.h"
#include "session/session.h"
#include "session/speculator.h"

#include <deque>
#include <memory>
#include <vector>

namespace spac {

// The drafts of several sequences. A draft model has a context of as many sequences as the target, and drafts for all
// in one batch a token. If somebody sees its tokens or routes, it drafts for one sequence after the other, token by
// token, as the target does with "self". N-grams look at one sequence alone, so each has a Speculator of its own.
class ParallelDrafts : NotCopied {
  public:
    // `targets` are the sequences of the target's context. With "self", they need not know what the memory holds:
    // draft() tells them, and drafts nothing where that is not the request's tokens. `draft_experts` are those of
    // Speculator. Throws InputError for types and contexts that do not fit.
    ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets, llama_context * draft_ctx,
                   Interrupt & interrupt, const std::shared_ptr<Experts> & draft_experts = nullptr);
    ~ParallelDrafts();

    struct Request {
        size_t               index = 0; // of the sequence
        const llama_tokens * tokens;    // the history
        llama_token          last;
        int                  n_max;
        llama_tokens *       draft; // the result
    };

    // Called with a drafted token, and with the number of tokens that have been evaluated for the step's drafts before
    // the one that it follows. If a sequence's draft ends at a token that it refuses, and another's follows, it is
    // called with LLAMA_TOKEN_NULL.
    using OnToken = std::function<void(llama_token, int)>;
    // The oldest sequence comes first. Sequences for which the memory has no room get no draft.
    void draft(const std::vector<Request> & requests, const OnToken & on_token = {});
    // Switches routes() on or off. Throws InputError if they cannot be kept.
    void keep_routes(bool keeps);
    // Returns the routes of the last drafts, one sequence behind another, or null if they are not kept.
    const DraftRoutes * routes() const { return routes_.get(); }
    // Notes that this step has no draft.
    void pass() { routes_.begin(); }
    // Notes that `n` tokens of the sequence's last draft were accepted. Must not be called for an empty draft.
    void accept(size_t index, int n, const llama_tokens & tokens);

  private:
    std::vector<Request> that_fit(const std::vector<Request> & requests);
    int                  n_used() const;
    void                 feed(const std::vector<Request> & requests);
    bool                 tell(const Request & request);
    void                 draft_by_turns(const std::vector<Request> & requests, const OnToken & on_token);
    void                 draft_at_once(const std::vector<Request> & requests);

    DraftConfig                              config_;
    std::vector<Context *>                   targets_;
    Interrupt &                              interrupt_;
    std::vector<std::unique_ptr<Speculator>> lookups_;      // n-grams; empty with others
    std::deque<SelfDraft>                    selves_;       // "self"; empty with others
    std::vector<Context>                     drafts_;       // the draft model's sequences; empty without one
    int                                      capacity_ = 0; // tokens that all sequences that draft hold together
    RouteLog                                 routes_;
    common_params_speculative                params_;
    common_speculative_ptr                   spec_;
};

} // namespace spac
