// The parts of a ParallelSession: parallel.cpp has its calls, parallel_step.cpp the steps, parallel_prompts.cpp reads
// prompts, parallel_verify.cpp drafts, verifies and samples.
#pragma once

#include "session/clock.h"
#include "session/context.h"
#include "session/expert_demand.h"
#include "session/interrupt.h"
#include "session/parallel.h"
#include "session/parallel_drafts.h"
#include "session/places.h"
#include "session/prompt_cache.h"
#include "session/prompt_graph.h"

#include <atomic>
#include <memory>
#include <vector>

namespace spac {

// The end of a prompt in a batch.
struct Tail {
    int first    = 0; // tokens from the first one to the batch's end
    int n_tokens = 0;
};

struct ParallelSession::Impl {
    Impl(const SessionConfig & config, bool is_separate);
    ~Impl();

    PlaceList         begin_step(const std::vector<Turn> & turns);
    void              evaluate_prompts(const PlaceList & places, int n_prompt);
    PlaceList         next_pieces(const PlaceList & places, int n_most);
    PlaceList         next_batch(const PlaceList & places, int n_prompt);
    std::vector<Tail> evaluate_pieces(const PlaceList & members);
    void              draft(const PlaceList & places);
    PlaceList         find_room(const PlaceList & places);
    void              verify(const PlaceList & members);
    void              sample(Place & place, int first_row);
    void              report(const PlaceList & places);
    PlaceList         advance(const std::vector<Turn> & turns, int n_prompt);
    bool              goes_on(const PlaceList & taking) const;

    std::shared_ptr<Trace>          trace;
    Interrupt                       interrupt; // declared before the contexts, so that it outlives their use of it
    llama_context *                 ctx;
    bool                            separate;
    Places                          places;
    PromptGraph                     prompt_graph;
    std::shared_ptr<Experts>        experts;
    ExpertDemand                    demand;
    std::unique_ptr<ParallelDrafts> drafts;
    PromptCache                     cache;
    common_batch                    batch;
    Listeners                       listeners;
    ParallelStep                    result;
    std::atomic<bool>               hands_over{false}; // true: the call of step() returns after this step
    int                             draft_max = 0;
    int                             next_id   = 0;
    uint64_t                        clock     = 0;
};

} // namespace spac
