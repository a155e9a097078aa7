// The parts of a Session: session.cpp has its calls and the steps, session_prompt.cpp evaluates prompts.
#pragma once

#include "backend/device/timer.h"
#include "common.h"
#include "session/context.h"
#include "session/expert_demand.h"
#include "session/interrupt.h"
#include "session/prompt_cache.h"
#include "session/prompt_graph.h"
#include "session/sequence.h"
#include "session/session.h"
#include "session/speculator.h"
#include "session/token_sampler.h"

#include <atomic>
#include <memory>

namespace spac {

struct Session::Impl {
    explicit Impl(const SessionConfig & config);
    ~Impl();

    void evaluate_prompt(const Progress & progress = {});
    void evaluate_piece();
    void evaluate_text();
    int  next_piece() const;
    // Returns the speculator if this sequence is drafted, else null.
    Speculator * drafting() const { return sequence.has_images() ? nullptr : speculator.get(); }
    void         observe(const common_batch & decoded, int pos);
    void         draft();
    void         decode_window();
    llama_tokens verify();
    llama_tokens sample();
    void         commit(const llama_tokens & accepted);
    void         advance();

    std::shared_ptr<Trace>             trace;
    std::shared_ptr<Experts>           experts;
    std::shared_ptr<Projector>         projector;
    Interrupt                          interrupt; // declared before the contexts, so that it outlives their use of it
    Context                            target;
    Sequence                           sequence;
    PromptGraph                        prompt_graph;
    ExpertDemand                       demand;
    TokenSampler                       sampler;
    common_batch                       window;             // the last verification: a token, and the draft after it
    bool                               has_logits = false; // true: the target has those that the last step chose by
    std::unique_ptr<Speculator>        speculator;
    PromptCache                        cache;
    common_batch                       batch;
    Listeners                          listeners;
    std::shared_ptr<const ImagePrompt> images;            // those of the sequence; null: it has none
    bool                               has_begun = false; // true if the speculator knows of the prompt
    bool                               has_tail  = false; // true if the experts have noted the prompt's last routes

    llama_tokens     drafted;
    Step             result;
    std::atomic<int> draft_length{0};
    int              draft_max       = 0;
    int              checkpoint_step = 0;
    int              n_reused        = 0;
};

} // namespace spac
