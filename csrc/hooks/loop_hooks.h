// The calls that llama.cpp's speculative loop makes to spac.
//
// The loop is server_context's. The linker's --wrap leads its calls of drafting, decoding and sampling here
// (csrc/CMakeLists.txt), so these calls need no patch. All of them come from the loop's one thread.
#pragma once

#include "backend/device/timer.h"
#include "core/loop_lock.h"
#include "core/not_copied.h"
#include "hooks/loop_listeners.h"
#include "hooks/own_requests.h"
#include "session/expert_demand.h"
#include "session/grammar.h"
#include "session/interrupt.h"
#include "session/parallel_impl.h"
#include "session/prompt_graph.h"

#include "server-common.h"

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

struct common_sampler;

namespace spac {

constexpr auto no_numbers = "the model's logits are no finite numbers";
inline bool    is_bad(float logit) { return std::isnan(logit) || logit == INFINITY; }

// The windows of a batch: a sequence, and the number of its tokens.
using LoopWindows = std::vector<std::pair<llama_seq_id, int>>;

class LoopHooks : NotCopied {
  public:
    // Returns the hooks of the loop that runs on this thread, or null.
    static LoopHooks * current();
    // Notes why a decode or an image has failed, and returns it for the last one of any loop.
    static void        set_fault(std::string cause);
    static std::string last_fault();
    // Returns the message and the type of an error for those who asked, where llama.cpp's say less than is known.
    static std::pair<std::string, error_type> error_of(const std::string & message, error_type type);

    // `lock` is held while the loop drafts, decodes the target and calls listeners. `n_slots` is the number of its
    // slots, and `n_rows` the largest number of tokens of a step.
    LoopHooks(llama_context * target, std::shared_ptr<Experts> experts, std::shared_ptr<Trace> trace,
              std::shared_ptr<LoopLock> lock, int n_slots, int n_rows);
    ~LoopHooks();

    // Makes these hooks those of the thread that calls this, until they are destroyed there.
    void attach();
    void detach();
    // Lets spac's drafts take the place of those of llama.cpp's loop. They evaluate a token of the draft model once,
    // and none while nothing is drafted.
    void set_drafts(std::unique_ptr<ParallelDrafts> drafts) { drafts_ = std::move(drafts); }
    // Lets shorter drafts of llama.cpp's loop be dropped.
    void set_least_draft(int n_tokens) { least_draft_ = n_tokens; }
    // Sets the callbacks. Must not be called while a request is answered.
    void set_listeners(const Listeners & listeners, LoopListeners more);

    llama_context * target() const { return target_; }
    // Returns true if the last decode was a step, and no text has begun since.
    bool is_stepping() const { return is_stepping_; }
    // Returns true if the target's memory keeps a window of the past and no state.
    bool has_window() const;
    // Returns true if the target's memory keeps a state, which cannot go back.
    bool has_state() const;

    // Drafts for all slots that ask for it. `run` is llama.cpp's function.
    void draft(common_speculative * spec, const std::function<void()> & run);
    // Notes that a draft's tokens were accepted. Returns false if llama.cpp's loop has drafted.
    bool accept();
    // Returns the number of tokens at the end of a prompt whose logits a request of this process asks for.
    int n_scored() const;
    // Runs a decode. It is a step if `n_outputs`, the tokens that want logits, are all of its tokens. `n_asking`
    // sequences want logits. `windows` has the tokens in their order. `n_rows` tokens have logits, those of n_scored()
    // too. Returns -3 if the logits are no finite numbers, if an RPC server was lost, or if `stop` was called.
    int decode(const llama_context * ctx, const std::function<int()> & run, int n_outputs, int n_asking, int n_rows,
               LoopWindows windows);
    // Ends a decode of the target early. Any thread may call it.
    void stop() noexcept { interrupt_.cancel(); }

    // Bounds what a request asks of its sampler, and tells that its text begins. Its grammar was checked before, by the
    // thread that serves it (request_parameters.cpp) or by sampling_params.
    void bound(common_params_sampling & params);
    // Notes a new sampler, after its check, its copy, and its end.
    void add(const common_sampler * sampler, const common_params_sampling & params);
    void copy(const common_sampler * sampler, const common_sampler * copied);
    void remove(const common_sampler * sampler);
    // Called before a slot samples by the logits of the batch's token `row`. Returns true if the token with the largest
    // logit is all that is asked. Throws InputError if the grammar of this slot has taken too long.
    bool sampling(const llama_context * ctx, const common_sampler * sampler, int row);
    // Counts tokens that a slot sampled. `n_drafted` of the verified ones were drafts, and the first token was chosen
    // by the logits of the batch's token `row`.
    void sampled(const llama_context * ctx, const llama_tokens & tokens, int n_drafted, int row);
    // Returns true if a sampler does not look back on the next token of its prompt.
    bool skips(const common_sampler * sampler);

  private:
    using Ends = std::map<llama_seq_id, llama_pos>; // the last positions of sequences

    struct Sampler {
        bool                                        is_greedy = false; // true: nobody looks at the candidates either
        bool                                        asks_probabilities = false;
        GrammarBudget                               budget;
        std::shared_ptr<OwnRequest>                 request;            // null: one of a client
        size_t                                      n_skipped = 0;      // tokens of its prompt
        std::optional<std::pair<SequenceStep, int>> step;               // which is not handed out, and its first row
        bool                                        has_scored = false; // true: the prompt's tokens were scored
    };

    int                               verify(const std::function<int()> & run, int n_tokens);
    int                               evaluate(const std::function<int()> & run, int n_tokens, int n_outputs);
    bool                              may_repeat(const Ends & before, bool is_smaller);
    Ends                              ends() const;
    void                              end_draft(const llama_tokens & all);
    void                              end_step();
    bool                              is_finite(int n_outputs) const;
    void                              forget();
    void                              count_grammar(const common_sampler * next);
    void                              count_parts(bool begins);
    void                              note(SequenceStep step, int row);
    std::optional<TokenProbabilities> scored(const OwnRequest & request, int first, int row) const;
    void                              hand_out();

    llama_context *                           target_;
    std::shared_ptr<Experts>                  experts_;
    std::shared_ptr<Trace>                    trace_;
    std::shared_ptr<LoopLock>                 lock_;
    int                                       n_slots_;
    ExpertDemand                              demand_;
    PromptGraph                               graph_;
    int                                       least_draft_ = 0;
    std::unique_ptr<ParallelDrafts>           drafts_; // null: llama.cpp's loop drafts
    Listeners                                 listeners_;
    LoopListeners                             more_;
    bool                                      is_drafting_ = false; // true: a draft is made
    bool                                      has_drafted_ = false; // true: the draft of the next step has ended
    ParallelStep                              step_;                // the one whose tokens are being sampled
    LoopWindows                               windows_;             // of its batch
    std::vector<ExpertCounts>                 parts_;               // of the windows; empty if nobody asks
    Clock::time_point                         verified_;            // when its decode ended
    bool                                      is_stepping_ = false;
    int                                       n_awaited_   = 0; // slots of the step that have not sampled yet
    Clock::time_point                         start_;           // of the step
    std::optional<Clock::time_point>          ended_; // when the step before it ended; null: no step, or work since
    int64_t                                   draft_ns_ = 0; // time of drafting since the last step
    Interrupt                                 interrupt_;
    std::set<llama_seq_id>                    asking_probabilities_;
    std::optional<GrammarScope>               grammars_; // of the loop's thread
    std::map<const common_sampler *, Sampler> samplers_;
    const common_sampler *                    sampler_ = nullptr; // the one that has sampled last
    uint64_t                                  work_    = 0;       // of grammars before that
};

} // namespace spac
