#include "hooks/loop_hooks.h"

#include "backend/experts/experts.h"
#include "core/error.h"
#include "session/llama_models.h"
#include "session/token_probabilities.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>

namespace spac {

namespace {

thread_local LoopHooks * hooks = nullptr;

std::mutex  fault_lock;
std::string fault; // why the last decode or image failed, where it is known

} // namespace

LoopHooks * LoopHooks::current() { return hooks; }

void LoopHooks::set_fault(std::string cause) {
    const std::lock_guard hold(fault_lock);
    fault = std::move(cause);
}

std::string LoopHooks::last_fault() {
    const std::lock_guard hold(fault_lock);
    return fault;
}

std::pair<std::string, error_type> LoopHooks::error_of(const std::string & message, error_type type) {
    std::string cause = message;
    for (const std::string prefix : {"got exception: ", "Failed to initialize samplers: "}) { // of a slot
        cause = cause.rfind(prefix, 0) == 0 ? cause.substr(prefix.size()) : cause;
    }
    if (cause == "Compute error." || cause == "failed to process mtmd chunk") {
        const auto known = last_fault();
        cause            = known.empty() ? cause : known;
    }
    const std::string size = "the available context size (";
    if (const size_t at = cause.find(size); at != std::string::npos) { // clients look for OpenAI's words
        const std::string n = cause.substr(at + size.size(), cause.find(' ', at + size.size()) - at - size.size());
        cause = "this model's maximum context length is " + n + " tokens: " + cause.substr(0, cause.rfind(','));
    }
    return {cause, cause.rfind("the grammar ", 0) == 0 ? ERROR_TYPE_INVALID_REQUEST : type};
}

LoopHooks::LoopHooks(llama_context * target, std::shared_ptr<Experts> experts, std::shared_ptr<Trace> trace,
                     std::shared_ptr<LoopLock> lock, int n_slots, int n_rows)
    : target_(target), experts_(experts), trace_(std::move(trace)), lock_(std::move(lock)), n_slots_(n_slots),
      demand_(std::move(experts)), graph_(target) {
    demand_.set_step_tokens(n_rows);
    if (experts_ != nullptr) {
        experts_->set_staged_tokens(graph_.small());
    }
}

LoopHooks::~LoopHooks() { detach(); }

void LoopHooks::attach() {
    hooks = this;
    grammars_.emplace();
    interrupt_.attach(target_);
}

void LoopHooks::detach() {
    if (hooks == this) {
        hooks = nullptr;
        grammars_.reset();
        interrupt_.detach(target_);
    }
}

bool LoopHooks::has_window() const { return llama_model_n_swa(llama_get_model(target_)) > 0 && !has_state(); }

bool LoopHooks::has_state() const { return Context::has_recurrent_model(target_); }

void LoopHooks::set_listeners(const Listeners & listeners, LoopListeners more) {
    listeners_ = listeners;
    more_      = std::move(more);
    demand_.set_layer_listener(listeners.verify_layer);
    if (drafts_ != nullptr) {
        drafts_->keep_routes(listeners.draft_routes);
    }
}

bool LoopHooks::accept() {
    const auto found = samplers_.find(sampler_);
    if (found != samplers_.end() && found->second.step) {
        auto [step, row] = *std::exchange(found->second.step, std::nullopt);
        found->second.request->push(std::move(step), row);
    }
    return drafts_ != nullptr && !is_drafting_;
}

int LoopHooks::n_scored() const {
    size_t most = 0;
    for (const auto & [sampler, each] : samplers_) {
        if (each.request != nullptr && !each.has_scored) {
            most = std::max(most, each.request->scored().size());
        }
    }
    return static_cast<int>(most);
}

void LoopHooks::bound(common_params_sampling & params) {
    is_stepping_ = false;
    ended_.reset();
    count_grammar(nullptr);
    // More tokens than the context has never come, but llama.cpp takes memory for them.
    const auto most           = static_cast<int32_t>(llama_n_ctx(target_));
    params.penalty_last_n     = std::min(params.penalty_last_n, most);
    params.dry_penalty_last_n = std::min(params.dry_penalty_last_n, most);
    params.n_prev             = std::min(params.n_prev, std::max(most, 64));
    // A client may ask for it, but its graphs are not those of the split.
    params.backend_sampling = false;
    const LoopRegion region(*lock_); // others may set listeners
    if (more_.text_begin) {
        const auto request = OwnRequest::of(params);
        more_.text_begin(request != nullptr ? request->number() : 0);
    }
}

// Counts the grammar's work since the last call for the sampler that was the last one. `next` is the next one, or null.
void LoopHooks::count_grammar(const common_sampler * next) {
    const uint64_t work  = grammars_->work();
    const auto     found = samplers_.find(sampler_);
    if (found != samplers_.end() && work > work_) {
        found->second.budget.spend(work - work_, 1);
    }
    sampler_ = next;
    work_    = work;
}

void LoopHooks::add(const common_sampler * sampler, const common_params_sampling & params) {
    samplers_[sampler] = {params.n_probs == 0 && is_greedy(sampler, params),
                          params.n_probs > 0,
                          {},
                          OwnRequest::of(params),
                          0,
                          {},
                          false};
    work_              = grammars_->work(); // that of the check and of the beginning belongs to no token
}

void LoopHooks::copy(const common_sampler * sampler, const common_sampler * copied) {
    count_grammar(nullptr);
    const auto found = samplers_.find(sampler);
    if (found != samplers_.end()) {
        samplers_[copied] = found->second;
    }
}

void LoopHooks::remove(const common_sampler * sampler) {
    count_grammar(nullptr);
    samplers_.erase(sampler);
}

bool LoopHooks::sampling(const llama_context * ctx, const common_sampler * sampler, int row) {
    count_grammar(sampler);
    const auto found = samplers_.find(sampler);
    if (found == samplers_.end()) {
        return false;
    }
    found->second.budget.check(llama_model_get_vocab(llama_get_model(target_)));
    int first = 0;
    for (const auto & [slot, n] : windows_) {
        if (ctx == target_ && row >= first && row < first + n) {
            if (found->second.asks_probabilities) {
                asking_probabilities_.insert(slot);
            } else {
                asking_probabilities_.erase(slot);
            }
        }
        first += n;
    }
    return ctx == target_ && found->second.is_greedy;
}

void LoopHooks::sampled(const llama_context * ctx, const llama_tokens & tokens, int n_drafted, int row) {
    if (ctx != target_) {
        return;
    }
    const float * const logits = llama_get_logits_ith(target_, row + static_cast<int>(tokens.size()) - 1);
    if (logits != nullptr && is_bad(logits[tokens.back()])) {
        throw InternalError(no_numbers);
    }
    SequenceStep sequence;
    sequence.id         = static_cast<int>(step_.sequences.size());
    sequence.tokens     = tokens;
    sequence.n_drafted  = n_drafted;
    sequence.n_accepted = n_drafted > 0 ? static_cast<int>(tokens.size()) - 1 : 0;
    note(sequence, row);
    if (n_awaited_ == 0) {
        hand_out();
        return;
    }
    auto & batch = step_.batch;
    batch.tokens.insert(batch.tokens.end(), tokens.begin(), tokens.end());
    batch.n_drafted += n_drafted;
    batch.n_accepted += sequence.n_accepted;
    step_.sequences.push_back(std::move(sequence));
    // The last slot's step is handed out after the listeners have seen it. The server may end the others before that.
    if (--n_awaited_ == 0) {
        try {
            end_step();
        } catch (...) {
            hand_out();
            throw;
        }
    }
    hand_out();
}

// Hands the steps out that are noted. One with a draft waits for accept(), because a server that cannot undo a draft
// goes back to the state before it, and samples once more.
void LoopHooks::hand_out() {
    for (auto & [sampler, each] : samplers_) {
        if (each.step && each.step->first.n_drafted == 0) {
            auto [step, row] = *std::exchange(each.step, std::nullopt);
            each.request->push(std::move(step), row);
        }
    }
}

// Notes a step of the request of the sampler that has sampled last.
void LoopHooks::note(SequenceStep step, int row) {
    const auto found = samplers_.find(sampler_);
    if (found == samplers_.end() || found->second.request == nullptr) {
        return;
    }
    if (llama_vocab_is_eog(llama_model_get_vocab(llama_get_model(target_)), step.tokens.back())) {
        step.is_end = true;
    }
    if (step_.verified) {
        step.n_steps   = 1;
        step.draft_ns  = step_.batch.draft_ns;
        step.verify_ns = step_.batch.verify_ns;
        step.sample_ns = ns_since(verified_);
    }
    int first = 0; // token of the window
    for (size_t i = 0; i < windows_.size(); first += windows_[i].second, ++i) {
        if (row < first || row >= first + windows_[i].second) {
            continue;
        }
        if (i < parts_.size()) {
            step.experts = parts_[i];
        }
        if (!found->second.has_scored) {
            step.scored              = scored(*found->second.request, first, row);
            found->second.has_scored = true;
        }
    }
    found->second.step = {std::move(step), row};
}

// Returns the probabilities of the tokens that a request scores by the rows up to `row`, of a window from `first` on.
std::optional<TokenProbabilities> LoopHooks::scored(const OwnRequest & request, int first, int row) const {
    const auto & asked = request.scored();
    if (asked.empty()) {
        return std::nullopt;
    }
    const auto n = std::min(static_cast<int>(asked.size()), row - first + 1);
    return token_probabilities(target_, {asked.end() - n, asked.end()}, request.n_top(), row - n + 1);
}

bool LoopHooks::skips(const common_sampler * sampler) {
    const auto found = samplers_.find(sampler);
    if (found == samplers_.end() || found->second.request == nullptr) {
        return false;
    }
    return found->second.n_skipped++ < found->second.request->n_unseen();
}

// Begins or ends to count each window's experts, if a request of this process runs.
void LoopHooks::count_parts(bool begins) {
    const bool asks = std::any_of(samplers_.begin(), samplers_.end(),
                                  [](const auto & each) { return each.second.request != nullptr; });
    if (experts_ == nullptr || !asks) {
        return;
    }
    if (!begins) {
        parts_ = experts_->take_parts();
        return;
    }
    std::vector<int> sizes;
    for (const auto & [sequence, n] : windows_) {
        sizes.push_back(n);
    }
    experts_->set_parts(sizes);
}

void LoopHooks::end_step() {
    const LoopRegion region(*lock_);
    if (step_.verified) {
        step_.batch.n_steps   = 1;
        step_.batch.sample_ns = ns_since(verified_);
        if (trace_->on()) {
            Span span;
            span.activity = Activity::sample;
            span.count    = step_.batch.n_accepted;
            span.end_ns   = Trace::now();
            span.start_ns = span.end_ns - step_.batch.sample_ns;
            trace_->add(span);
        }
    }
    const SpanScope scope(*trace_, Activity::observe);
    const auto      listen = [&] {
        if (step_.verified && listeners_.verify_end) {
            listeners_.verify_end(step_.batch);
        }
        const int64_t ns = step_.verified ? ns_since(start_) : step_.prefill_ns;
        if (step_.verified) {
            ended_ = start_ + std::chrono::nanoseconds(ns);
        }
        if (more_.step_end) {
            more_.step_end(step_, static_cast<double>(ns) / 1e9);
        }
    };
    if (more_.together) {
        more_.together(listen);
    } else {
        listen();
    }
}

} // namespace spac
