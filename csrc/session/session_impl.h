// The parts of a Session: session.cpp has its calls and the steps, session_prompt.cpp evaluates prompts.
#pragma once

#include "session/context.h"
#include "session/interrupt.h"
#include "session/prompt_cache.h"
#include "session/sequence.h"
#include "session/session.h"
#include "session/speculator.h"
#include "session/verifier.h"

#include <atomic>
#include <memory>

namespace spac {

struct Session::Impl {
    explicit Impl(const SessionConfig & config);
    ~Impl();

    void evaluate_prompt(const Progress & progress = {});
    void evaluate_piece();
    void evaluate_text();
    void end_tail();
    void choose_graph(int n_failed);
    bool takes_smaller_graphs();
    int  next_piece() const;
    // Returns the speculator if this sequence is drafted, else null.
    Speculator * drafting() const { return sequence.has_images() ? nullptr : speculator.get(); }
    void         observe(const common_batch & decoded, int pos);
    int          next_draft_length() const;
    void         draft();
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
    Verifier                           verifier;
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
    int              small_graph     = 0; // tokens of the target's graphs when the session was made
    int              graph           = 0; // tokens of the next graph of the current prompt
    int              failed_graph    = 0; // tokens of the smallest graph that had no memory in this prompt; 0: none
};

} // namespace spac
