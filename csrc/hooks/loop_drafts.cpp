// The drafts of the loop's slots: how long they are, and who makes them.
#include "hooks/loop_hooks.h"

#include <algorithm>
#include <functional>

namespace spac {

void LoopHooks::draft(common_speculative * spec, const std::function<void()> & run) {
    if (is_drafting_) {
        run();
        return;
    }
    const LoopRegion region(*lock_);
    if (region.has_waited()) {
        ended_.reset();
    }
    std::vector<ParallelDrafts::Request>           requests;
    std::vector<common_speculative_draft_params *> asked;
    for (int i = 0; i < n_slots_; ++i) {
        auto & params = common_speculative_get_draft_params(spec, i);
        // llama.cpp's loop has no probabilities of drafted tokens, so nothing is drafted for who asks for them.
        params.drafting = params.drafting && asking_probabilities_.count(i) == 0;
        if (params.drafting) {
            asked.push_back(&params);
            requests.push_back({static_cast<size_t>(i), params.prompt, params.id_last, params.n_max, params.result});
        }
    }
    if (asked.empty()) {
        return;
    }
    int longest = 0;
    for (const auto & each : requests) {
        longest = std::max(longest, each.n_max);
    }
    if (more_.draft_length) {
        longest = more_.draft_length(static_cast<int>(asked.size()), longest);
    }
    for (size_t i = 0; i < asked.size(); ++i) {
        asked[i]->n_max = requests[i].n_max = std::min(requests[i].n_max, longest);
        // llama.cpp's function does the same. With a flag that stays, the slot's next request begins with a draft.
        asked[i]->drafting = longest > 0 && drafts_ == nullptr;
    }
    if (longest == 0) {
        return;
    }
    SpanScope  scope(*trace_, Activity::draft);
    const auto start = Clock::now();
    start_           = ended_.value_or(start);
    is_drafting_     = true;
    try {
        if (drafts_ == nullptr) {
            run();
            for (const auto & each : requests) { // llama.cpp's n-grams have their own least lengths
                if (static_cast<int>(each.draft->size()) < least_draft_) {
                    each.draft->clear();
                }
            }
        } else {
            ParallelDrafts::OnToken on_token;
            if (listeners_.draft_token) {
                on_token = [&](llama_token token, int index) {
                    listeners_.draft_token(token, index, drafts_->routes());
                };
            }
            drafts_->draft(requests, on_token);
        }
    } catch (...) {
        is_drafting_ = false;
        throw;
    }
    is_drafting_ = false;
    draft_ns_ += ns_since(start);
    std::vector<int32_t> all;
    for (const auto & each : requests) {
        all.insert(all.end(), each.draft->begin(), each.draft->end());
    }
    scope.span.count = static_cast<int32_t>(all.size());
    end_draft(all);
}

void LoopHooks::end_draft(const llama_tokens & all) {
    has_drafted_ = true;
    if (listeners_.draft_end) {
        listeners_.draft_end(all, draft_ns_, drafts_ != nullptr ? drafts_->routes() : nullptr);
    }
}

} // namespace spac
