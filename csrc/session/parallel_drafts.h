// The drafts of several sequences.
#pragma once

#include "session/context.h"
#include "session/session.h"
#include "session/speculator.h"

#include <memory>
#include <vector>

namespace spac {

// A draft model has a context of as many sequences as the target, and drafts for all in one batch a token. N-grams look
// at one sequence's tokens alone, so each has a Speculator of its own.
class ParallelDrafts {
  public:
    // `targets` are the sequences of the target's context. Throws InputError for types and contexts that do not fit.
    ParallelDrafts(const DraftConfig & config, const std::vector<Context *> & targets, llama_context * draft_ctx,
                   Interrupt & interrupt);
    ~ParallelDrafts();
    ParallelDrafts(const ParallelDrafts &)             = delete;
    ParallelDrafts & operator=(const ParallelDrafts &) = delete;

    struct Request {
        size_t               index = 0; // of the sequence
        const llama_tokens * tokens;    // the history
        llama_token          last;
        int                  n_max;
        llama_tokens *       draft; // the result
    };

    // Begins sequence `index` with a new prompt, of which the target's memory holds `n` tokens.
    void begin(size_t index, const llama_tokens & prompt, int n);
    // Follows the target, which has evaluated the first `n` tokens of a prompt; all of them if `n` is its size.
    void read(size_t index, const llama_tokens & prompt, int n);
    // The oldest sequence comes first. Sequences for which the draft's memory has no room get no draft.
    void draft(const std::vector<Request> & requests);
    // Notes that `n` tokens of the sequence's last draft were accepted. Must not be called for an empty draft.
    void accept(size_t index, int n, const llama_tokens & tokens);

  private:
    std::vector<Request> that_fit(const std::vector<Request> & requests);
    int                  n_used() const;
    void                 feed(const std::vector<Request> & requests);

    DraftConfig                              config_;
    std::vector<Context *>                   targets_;
    Interrupt &                              interrupt_;
    std::vector<std::unique_ptr<Speculator>> lookups_;      // n-grams; empty with a draft model
    std::vector<Context>                     drafts_;       // the draft model's sequences; empty without one
    int                                      capacity_ = 0; // tokens that all of these hold together
    common_params_speculative                params_;
    common_speculative_ptr                   spec_;
};

} // namespace spac
