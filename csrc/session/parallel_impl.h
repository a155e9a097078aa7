// The drafts of the sequences of llama.cpp's loop.
#pragma once

#include "core/not_copied.h"
#include "session/context.h"
#include "session/route_log.h"
#include "speculative.h"

#include <functional>
#include <memory>
#include <vector>

namespace spac {

// The drafts of several sequences, by a draft model ("draft-simple") or by the target itself ("self"). A draft model
// has a context of as many sequences as the target, and drafts for all in one batch a token. If somebody sees its
// tokens or routes, it drafts for one sequence after the other, token by token, as the target always does.
//
// The cells that the target's drafts write are taken back at their end. The verification writes them again, for
// accepted and rejected tokens alike, so the text is that without drafts.
class ParallelDrafts : NotCopied {
  public:
    // `targets` are the sequences of the target's context. With "self", draft() tells them what the memory holds, and
    // drafts nothing where that is not the request's tokens. `experts` are those of the model that drafts. Throws
    // InputError for a target that cannot draft for itself.
    ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets, llama_context * draft_ctx,
                   const std::shared_ptr<Experts> & experts);

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
    // Switches routes() on or off.
    void keep_routes(bool keeps) { routes_.keep(keeps); }
    // Returns the routes of the last drafts, one sequence behind another, or null if they are not kept.
    const DraftRoutes * routes() const { return routes_.get(); }
    // Notes that this step has no draft.
    void pass() { routes_.begin(); }

  private:
    std::vector<Request> that_fit(const std::vector<Request> & requests);
    void                 feed(const std::vector<Request> & requests);
    bool                 tell(const Request & request);
    void                 draft_one_by_one(const std::vector<Request> & requests, const OnToken & on_token);
    llama_tokens         draft_alone(const Request & request, const std::function<void(llama_token)> & on_token);
    void                 draft_at_once(const std::vector<Request> & requests);

    DraftConfig              config_;
    std::vector<Context *>   targets_;
    std::vector<Context>     drafts_;       // the draft model's sequences; empty if the target drafts
    std::shared_ptr<Experts> own_experts_;  // of the target that drafts; null with a draft model
    int                      capacity_ = 0; // tokens that all sequences of the model that drafts hold together
    RouteLog                 routes_;
    common_speculative_ptr   spec_;
};

} // namespace spac
