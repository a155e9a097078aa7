// Drafts with the target's own context, in a draft pass of its experts (MoE-SpeQ 3.4.1).
#pragma once

#include "session/context.h"
#include "session/route_log.h"
#include "session/session.h"

#include <functional>
#include <memory>

namespace spac {

class Interrupt;

// The cells that a draft writes in the target's memory are taken back at its end. The verification writes them again,
// for accepted and rejected tokens alike, so the text is that without drafts.
class SelfDraft {
  public:
    // A draft stops before a token that is less probable than `p_min` (greedy_choice).
    SelfDraft(Context & target, std::shared_ptr<Experts> experts, float p_min, Interrupt & interrupt)
        : target_(target), experts_(std::move(experts)), p_min_(p_min), interrupt_(interrupt), batch_(target.get()) {}

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

} // namespace spac
