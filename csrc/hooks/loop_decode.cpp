// Decodes of the loop: steps, prompts, and what follows where one fails.
#include "hooks/loop_hooks.h"

#include "../src/llama-context.h" // for the sizes of graphs and of logits, which no public function sets
#include "backend/experts/experts.h"
#include "core/error.h"
#include "session/llama_models.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

namespace {

// Returns the error that llama.cpp's status of a decode stands for.
std::exception_ptr fault_of(int status, int n_tokens) {
    const auto what = "llama.cpp could not evaluate " + std::to_string(n_tokens) + " tokens: ";
    if (status == -2) {
        return std::make_exception_ptr(MemoryError(what + "out of memory; give a smaller --ubatch or fewer --slots"));
    }
    return std::make_exception_ptr(DeviceError(what + "the computation failed"));
}

// While it lives, llama.cpp cuts a batch into graphs of `n_tokens` at most, in the buffers that the context has.
class GraphSize : NotCopied {
  public:
    GraphSize(const llama_context & ctx, int n_tokens)
        : cparams_(const_cast<llama_cparams &>(ctx.get_cparams())), before_(cparams_.n_ubatch) {
        cparams_.n_ubatch = std::min(before_, static_cast<uint32_t>(n_tokens));
    }
    ~GraphSize() { cparams_.n_ubatch = before_; }

  private:
    llama_cparams & cparams_;
    uint32_t        before_;
};

// While it lives, a batch may have so many rows of logits. llama.cpp's buffer of them grows for it.
class RowsOfLogits : NotCopied {
  public:
    RowsOfLogits(const llama_context & ctx, int n_rows)
        : cparams_(const_cast<llama_cparams &>(ctx.get_cparams())), before_(cparams_.n_outputs_max) {
        cparams_.n_outputs_max = std::max(before_, static_cast<uint32_t>(n_rows));
    }
    ~RowsOfLogits() { cparams_.n_outputs_max = before_; }

  private:
    llama_cparams & cparams_;
    uint32_t        before_;
};

} // namespace

int LoopHooks::decode(const llama_context * ctx, const std::function<int()> & run, int n_outputs, int n_asking,
                      int n_rows, LoopWindows windows) {
    const AbortGuard::Pause pause;
    if (is_drafting_) {
        return run(); // draft() measures the time
    }
    if (ctx != target_) {
        const auto start  = Clock::now();
        const int  status = run();
        // What the draft's context reads of a batch belongs to the batch.
        auto & time = !step_.verified ? step_.prefill_ns : n_awaited_ > 0 ? step_.batch.draft_ns : draft_ns_;
        time += ns_since(start);
        verified_ = Clock::now();
        return status;
    }
    int n_tokens = 0;
    for (const auto & [sequence, n] : windows) {
        n_tokens += n;
    }
    const bool       embeds = target_->get_cparams().embeddings;
    const LoopRegion region(*lock_);
    int              status = 0;
    is_stepping_            = !embeds && n_outputs == n_tokens;
    if (!is_stepping_ || region.has_waited()) {
        ended_.reset();
    }
    {
        const RowsOfLogits    room(*target_, n_rows);
        const Interrupt::Call call(interrupt_);
        step_    = {};
        windows_ = std::move(windows);
        parts_.clear();
        status = embeds ? run() : is_stepping_ ? verify(run, n_tokens) : evaluate(run, n_tokens, n_outputs);
    }
    verified_ = Clock::now();
    std::exception_ptr fault;
    std::string        cause = remote_loss_of(target_);
    if (!cause.empty()) {
        fault = std::make_exception_ptr(DeviceError(cause));
    } else if (status == 0 && !embeds && !is_finite(n_rows)) {
        cause = no_numbers;
        fault = std::make_exception_ptr(Error(cause));
        forget();
    } else if (status < 0) {
        fault = fault_of(status, n_tokens);
    }
    const bool fails = !cause.empty() || status == 2; // llama.cpp's loop does not know 2, and lets slots go on after it
    n_awaited_       = fails || embeds || status != 0 ? 0 : n_asking;
    if (fails || status != 0) {
        set_fault(std::move(cause));
    }
    for (const auto & [sampler, each] : samplers_) {
        if (fault != nullptr && each.request != nullptr) {
            each.request->fail(fault);
        }
    }
    return fails ? -3 : status;
}

// Looks at both ends of each row of logits: a state that is no number leaves none in the row.
bool LoopHooks::is_finite(int n_outputs) const {
    const float * const logits = llama_get_logits(target_);
    const auto n_vocab = static_cast<size_t>(llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(target_))));
    for (size_t row = 0; logits != nullptr && row < static_cast<size_t>(n_outputs); ++row) {
        if (is_bad(logits[row * n_vocab]) || is_bad(logits[(row + 1) * n_vocab - 1])) {
            return false;
        }
    }
    return true;
}

// Clears the memory with its data, because cells that are no numbers spoil every sequence that reads past them. The
// sequences that are not in the batch come back; the loop clears what it knows of the others after an error.
void LoopHooks::forget() {
    std::set<llama_seq_id> sequences;
    for (const auto & [sequence, n] : windows_) {
        sequences.insert(sequence);
    }
    auto * const                                 memory = llama_get_memory(target_);
    std::map<llama_seq_id, std::vector<uint8_t>> others;
    for (llama_seq_id i = 0; i < n_slots_; ++i) {
        if (sequences.count(i) == 0 && llama_memory_seq_pos_max(memory, i) >= 0) {
            auto & state = others[i];
            state.resize(llama_state_seq_get_size(target_, i));
            llama_state_seq_get_data(target_, state.data(), state.size(), i);
        }
    }
    llama_memory_clear(memory, true);
    for (const auto & [i, state] : others) {
        llama_state_seq_set_data(target_, state.data(), state.size(), i);
    }
}

// Returns the last positions of the batch's sequences in the memory.
LoopHooks::Ends LoopHooks::ends() const {
    Ends ends;
    for (const auto & [sequence, n] : windows_) {
        ends[sequence] = llama_memory_seq_pos_max(llama_get_memory(target_), sequence);
    }
    return ends;
}

// Returns true if a decode may be repeated for which a device had no memory: with smaller graphs, or because the device
// has more now. Its finished graphs are forgotten. A state that cannot go back may have changed in them, so it forbids
// the repetition.
bool LoopHooks::may_repeat(const Ends & before, bool is_smaller) {
    auto * const memory = llama_get_memory(target_);
    return (is_smaller || (more_.memory_full && more_.memory_full())) &&
           std::all_of(before.begin(), before.end(), [&](const auto & end) {
               return llama_memory_seq_pos_max(memory, end.first) == end.second ||
                      llama_memory_seq_rm(memory, end.first, end.second + 1, -1);
           });
}

// Runs a decode of the windows of slots that generate.
int LoopHooks::verify(const std::function<int()> & run, int n_tokens) {
    SpanScope scope(*trace_, Activity::verify);
    scope.span.count = n_tokens;
    const auto start = Clock::now();
    if (!has_drafted_) {
        start_ = ended_.value_or(start);
        if (drafts_ != nullptr) {
            drafts_->pass();
        }
        end_draft({});
    }
    const Ends before = ends();
    has_drafted_      = false;
    int status        = 0;
    step_.verified    = true;
    count_parts(true);
    demand_.count(
        [&] {
            do {
                status = run();
                llama_synchronize(target_);
            } while (status == -2 && may_repeat(before, false));
        },
        step_.batch);
    count_parts(false);
    demand_.take(step_.batch);
    step_.batch.verify_ns  = ns_since(start);
    step_.batch.n_verified = n_tokens;
    has_drafted_           = status == 1; // the loop makes room, and decodes the draft again
    step_.batch.draft_ns   = has_drafted_ ? draft_ns_ : std::exchange(draft_ns_, 0);
    return status;
}

// Runs a decode of prompts, and of what else is in their batch. `n_outputs` is above 0 if one of them ends.
int LoopHooks::evaluate(const std::function<int()> & run, int n_tokens, int n_outputs) {
    SpanScope scope(*trace_, Activity::prefill);
    scope.span.count    = n_tokens;
    const auto start    = Clock::now();
    const bool has_tail = n_outputs > 0 && listeners_.prompt_tail;
    const Ends before   = ends();
    int        status   = 0;
    do {
        const GraphSize size(*target_, graph_.choose(n_tokens, listeners_.prompt_graph));
        const NotedTail tail(has_tail ? experts_.get() : nullptr, NotedTail::route_tokens);
        status = run();
        llama_synchronize(target_);
    } while (status == -2 && may_repeat(before, graph_.fails()));
    if (std::vector<int32_t> ids; status == 0 && has_tail && experts_ != nullptr) {
        experts_->routes(ids);
        if (!ids.empty()) { // blocks that cannot be split, as those with an adapter, note none
            listeners_.prompt_tail();
        }
    }
    has_drafted_     = false; // a draft that was verified beside a prompt is none of the next step's
    step_.n_prompt   = n_tokens - n_outputs;
    step_.prefill_ns = ns_since(start) + std::exchange(draft_ns_, 0);
    if (status == 0 && n_outputs == 0 && more_.step_end) {
        more_.step_end(step_, static_cast<double>(step_.prefill_ns) / 1e9);
    }
    return status;
}

} // namespace spac
