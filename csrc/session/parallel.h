// Several sequences on one target context. Each has its own prompt, sampler and draft; a step verifies the windows of
// all in one batch, so an expert that several of them choose is read once.
//
// Like session.h, this header names no llama.cpp type.
#pragma once

#include "core/not_copied.h"
#include "session/session.h"

#include <exception>
#include <memory>
#include <optional>
#include <vector>

namespace spac {

// A sequence that takes part in a step.
struct Turn {
    int id           = 0;
    int draft_length = 0; // tokens to draft at most; 0 is plain decoding
};

// The result of one step for one of its sequences.
struct SequenceStep {
    int                  id = 0;
    std::vector<int32_t> tokens;         // accepted draft tokens, then the target's own; empty while a prompt is read
    int                  n_drafted  = 0; // draft tokens that were verified
    int                  n_accepted = 0; // draft tokens that were accepted
    int                  n_past     = 0; // tokens of the sequence in the target's memory
    int                  n_pending  = 0; // tokens that have to be evaluated before the next window
    int                  n_steps    = 0; // steps of the call that verified for it
    StopReason           reason     = StopReason::none;
    bool                 waits      = false; // true: the memory had no place for it, and others that are older use it
    std::exception_ptr   error;              // what failed for this sequence; it is as it was, and may be tried again
    std::optional<TokenProbabilities> probabilities;    // of `tokens`, if the sequence asked for them
    ExpertCounts                      experts;          // of the sequence's tokens in this verification
    int64_t draft_ns = 0, verify_ns = 0, sample_ns = 0; // times of the batch, until the sequence had sampled
    int64_t ns = 0;                                     // time since the sequence's step before; 0 for its first one
};

// The result of one step, or of all steps of a call.
struct ParallelStep {
    Step                      batch; // the counts, times and the demand of all sequences together
    std::vector<SequenceStep> sequences;
    int                       n_prompt   = 0; // prompt tokens that were evaluated
    int64_t                   prefill_ns = 0;
    bool                      verified   = false; // true: `batch` is of a verification
};

// The settings of one sequence.
struct JoinConfig {
    SamplingConfig sampling;
    size_t         n_unseen = 0;  // first tokens that penalties do not look back on
    int            n_top    = -1; // most probable tokens to report with each token; -1: no probabilities
};

// Like a Session, it is for one thread at a time, and its contexts belong to it.
//
// With a unified memory (kv_unified), sequences share its cells. If they do not suffice, sequences that have left lose
// their cells first. Then the youngest one is copied to host memory, until there is a place for it again. The oldest
// one always goes on.
class ParallelSession : NotCopied {
  public:
    // Says what the memory holds of one place.
    struct Held {
        int                  id     = -1; // the sequence in it; -1: it is free
        bool                 parked = false;
        std::vector<int32_t> tokens;
    };

    // The target's context says how many sequences there are (n_seq_max). Drafts come from "draft-simple" alone, whose
    // context has as many, or from n-grams. With `separate`, each sequence is evaluated in decodes of its own, as a
    // Session would do it. Throws InputError for contexts, draft types or sampling parameters that cannot work
    // together.
    ParallelSession(const SessionConfig & config, bool separate);
    ~ParallelSession();

    // Adds a sequence of all `tokens` and returns its id. Continues from what the memory, the prompt cache or another
    // sequence has of them. Throws InputError if all places are taken, for tokens that do not fit, and for sampling
    // parameters that are invalid; then nothing changes.
    int join(const int32_t * tokens, size_t n_tokens, const JoinConfig & config);
    // Removes a sequence. What the memory holds of it stays, until others need the place.
    void leave(int id);

    // Evaluates at most about `n_prompt` tokens of the prompts that are pending, the oldest first. Then drafts and
    // verifies for the other sequences. Only those that have a turn take part. The reference is valid until the next
    // step. Throws InputError for an unknown id, Cancelled, and what a listener throws. A call of several steps goes on
    // while each step verifies for all of them, and calls verify_end after each step.
    const ParallelStep & step(const std::vector<Turn> & turns, int n_prompt, const StepRun & run = {});

    // Lets the call of step() that runs, or the next one, return after the step that it makes. Any thread may call it.
    void hand_over() noexcept;

    // Replaces what the memory holds of a free place. `state` is of llama_state_seq_get_data and holds the `tokens`;
    // with none of both, the place is empty afterwards. Throws InputError if the place is not free, or if the memory
    // does not take the state; then it holds what it held.
    void replace(size_t place, const std::vector<int32_t> & tokens, const uint8_t * state, size_t n_bytes);

    // Stops the step that runs, or the next one.
    void cancel() noexcept;
    // Calls draft_end once for the drafts of all sequences, verify_layer and verify_end. A piece of prompts may be of
    // several; prompt_tail is called for each of them that ends in it. Throws InputError for draft_routes, which are
    // not known here.
    void set_listeners(const Listeners & listeners);

    int                  n_sequences() const; // places
    int                  n_joined() const;    // sequences
    int                  n_ctx() const;       // tokens of a sequence at most
    int                  draft_max() const;
    int                  n_reused(int id) const; // tokens of the prompt that were there when it joined
    std::vector<int32_t> tokens(int id) const;   // the whole sequence, with those not evaluated yet
    std::vector<Held>    held() const;           // by place
    Session::Cached      cached() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

} // namespace spac
