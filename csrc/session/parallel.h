// The steps of several sequences on one target context. Each has its own prompt, sampler and draft. A step verifies the
// windows of all in one batch, so an expert that several of them choose is read once.
//
// Like session.h, this header names no llama.cpp type.
#pragma once

#include "session/session.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace spac {

// The result of one step for one of its sequences.
struct SequenceStep {
    int                               id = 0;
    std::vector<int32_t>              tokens;             // accepted draft tokens, then the target's own
    int                               n_drafted  = 0;     // draft tokens that were verified
    int                               n_accepted = 0;     // draft tokens that were accepted
    int                               n_steps    = 0;     // 0 if the batch had prompts: that was no verification
    bool                              is_end     = false; // true: the last token ends the text
    std::optional<TokenProbabilities> probabilities;      // of `tokens`, if the sequence asked for them
    std::optional<TokenProbabilities> scored;             // of the last of JoinConfig::scored, in the first step
    ExpertCounts                      experts;            // of the sequence's tokens in this verification
    int64_t draft_ns = 0, verify_ns = 0, sample_ns = 0;   // times of the batch, until the sequence had sampled
    int64_t ns = 0;                                       // time since the sequence's step before; 0 for its first one
};

// The result of one step.
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
    // Tokens to report the probabilities of, by the rows of as many tokens at the end of the prompt. The rows that are
    // not in the prompt's last batch are left out, and so are their tokens.
    std::vector<int32_t> scored;
};

} // namespace spac
