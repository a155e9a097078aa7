#include "session/session.h"

#include "backend/device/timer.h"
#include "session/prompt_graph.h"
#include "session/session_impl.h"
#include "session/speculator.h"
#include "session/token_sampler.h"

#include <algorithm>

namespace spac {

namespace {

std::shared_ptr<Trace> trace_of(const SessionConfig & config) {
    return config.trace ? config.trace : config.experts ? config.experts->trace() : std::make_shared<Trace>();
}

Context checked_target(const SessionConfig & config) {
    auto * const ctx = Context::checked_target(config.target_ctx);
    if (config.n_checkpoints < 0 || config.checkpoint_step < 1) {
        throw InputError("n_checkpoints is " + std::to_string(config.n_checkpoints) + " and checkpoint_step " +
                         std::to_string(config.checkpoint_step) + ", expected at least 0 and 1");
    }
    Context target(ctx, "target", Context::has_recurrent_model(ctx));
    target.set_projector(config.projector.get());
    target.keep_checkpoints(config.n_checkpoints);
    return target;
}

} // namespace

Session::Impl::Impl(const SessionConfig & config)
    : trace(trace_of(config)), experts(config.experts), projector(config.projector), target(checked_target(config)),
      sequence(target), prompt_graph(target.get()), demand(config.experts),
      sampler(config.sampling, target.model(), target.n_ctx()), window(target.get()), cache(config.prompt_cache_bytes),
      batch(target.get()), checkpoint_step(config.checkpoint_step) {
    if (config.draft_experts && config.draft_experts == config.experts) {
        throw InputError("the draft's experts are the target's own: load the draft model beside it");
    }

    target.clear();
    const auto types = speculative_params(config.draft).types;
    const bool self  = drafts_itself(config.draft);
    if (config.draft.n_max > 0 && (self || !types.empty())) {
        if (target.n_batch() < config.draft.n_max + 1) {
            throw InputError("a draft of " + std::to_string(config.draft.n_max) +
                             " tokens needs a target context with n_batch of at least " +
                             std::to_string(config.draft.n_max + 1) + ", it has " + std::to_string(target.n_batch()));
        }
        check_rollback(target, config.draft.n_max);
        speculator = std::make_unique<Speculator>(config.draft, target, static_cast<llama_context *>(config.draft_ctx),
                                                  self ? config.experts : config.draft_experts, interrupt);
        draft_max  = config.draft.n_max;
        draft_length.store(draft_max);
    }
    target.check_rows(target.n_batch(), draft_max + 1);
    demand.set_step_tokens(draft_max + 1);
    interrupt.attach(target.get());
    if (config.experts) {
        config.experts->set_staged_tokens(prompt_graph.small());
    }
}

Session::Impl::~Impl() {
    speculator.reset();
    try {
        set_graph_tokens(target.get(), prompt_graph.small());
    } catch (const std::exception &) { // the context keeps its larger graphs
    }
    interrupt.detach(target.get());
}

void Session::Impl::draft() {
    const auto start = Clock::now();
    drafted.clear();
    const int n =
        drafting() != nullptr ? std::min({draft_length.load(), speculator->n_max(), sequence.draft_room()}) : 0;
    if (n > 0) {
        SpanScope scope(*trace, Activity::draft);
        drafted          = speculator->draft(sequence.history(), sequence.last(), n, [&](llama_token token, int index) {
            if (listeners.draft_token) {
                listeners.draft_token(token, index, speculator->routes());
            }
        });
        scope.span.count = static_cast<int32_t>(drafted.size());
    } else if (speculator) {
        speculator->pass();
    }
    result.draft_ns  = ns_since(start);
    result.n_drafted = static_cast<int>(drafted.size());
    if (listeners.draft_end) {
        listeners.draft_end(drafted, result.draft_ns, speculator ? speculator->routes() : nullptr);
    }
}

// Decodes the last token and the draft, and takes the demand. An exception leaves the target's memory and the demand as
// they were.
void Session::Impl::decode_window() {
    has_logits = false;
    window.clear();
    target.add_window(window, sequence.last(), drafted);
    SpanScope scope(*trace, Activity::verify);
    scope.span.count = window.size();
    const auto start = Clock::now();
    demand.count([&] { target.decode(window, interrupt); }, result);
    demand.take(result);
    result.verify_ns  = ns_since(start);
    result.n_verified = window.size();
}

// Returns the accepted tokens and the target's own. Until they are committed, an exception leaves the sequence as it
// was.
llama_tokens Session::Impl::verify() {
    interrupt.raise_if_stopped();
    try {
        decode_window();
        observe(window, sequence.n_history());
        return sample();
    } catch (...) {
        sequence.rewind();
        throw;
    }
}

llama_tokens Session::Impl::sample() {
    SpanScope  scope(*trace, Activity::sample);
    const auto start = Clock::now();
    try {
        auto accepted = sampler.sample(target.get(), drafted);
        has_logits    = true;
        target.note_logit(static_cast<int>(accepted.size()) - 1, accepted.back());
        result.sample_ns = ns_since(start);
        scope.span.count = static_cast<int32_t>(accepted.size()) - 1;
        return accepted;
    } catch (const std::exception &) {
        // The sampler may have taken some of the tokens. Only a new prompt makes it whole.
        sequence.drop_prompt();
        std::rethrow_exception(sampler_fault());
    }
}

void Session::Impl::commit(const llama_tokens & accepted) {
    result.tokens     = accepted;
    result.n_accepted = static_cast<int>(accepted.size()) - 1;
    result.reason     = sequence.append(accepted);
}

// Makes one step.
void Session::Impl::advance() {
    evaluate_prompt();
    result = Step{};
    if (sequence.is_full()) {
        result.reason = StopReason::length;
        return;
    }
    draft();
    commit(verify());
    result.n_steps = 1;
    if (!drafted.empty()) {
        speculator->accept(result.n_accepted, sequence.history());
    }
    if (listeners.verify_end) {
        listeners.verify_end(result);
    }
}

Session::Session(const SessionConfig & config) : impl_(std::make_unique<Impl>(config)) {}

Session::~Session() = default;

void Session::prefill(const int32_t * tokens, size_t n_tokens, const Progress & progress, size_t n_unseen,
                      std::shared_ptr<const ImagePrompt> images) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (n_tokens == 0) {
        throw InputError("the prompt is empty, expected at least one token");
    }
    if (images != nullptr && impl.projector == nullptr) {
        throw InputError("the prompt has images, and the session has no projector to read them");
    }
    impl.sequence.check(tokens, n_tokens, images.get());
    const llama_tokens wanted(tokens, tokens + n_tokens - 1);
    impl.sequence.drop_prompt(); // there is none until the new one has begun
    const bool recalls = impl.cache.exchange(wanted, impl.target, impl.speculator.get());
    const bool extends = !recalls && impl.sequence.is_start_of(wanted);
    impl.target.keep_prefix(wanted, static_cast<int>(wanted.size()));
    if (impl.speculator && !extends) {
        impl.speculator->cut(wanted, impl.target.n_past());
        if (images == nullptr) {
            impl.target.keep_prefix(wanted, impl.speculator->n_known(wanted));
        }
    }
    impl.n_reused = impl.target.n_past();
    impl.sequence.begin(wanted, tokens[n_tokens - 1]);
    impl.images    = std::move(images);
    impl.has_begun = false;

    n_unseen        = std::min(n_unseen, n_tokens);
    impl.has_logits = false;
    impl.sampler.begin(tokens + n_unseen, n_tokens - n_unseen);
    impl.evaluate_prompt(progress);
}

void Session::adopt(const int32_t * tokens, size_t n_tokens) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    impl.sequence.check_held(tokens, n_tokens);
    const llama_tokens held(tokens, tokens + n_tokens);
    const bool         extends = impl.sequence.is_start_of(held);
    impl.target.adopt(held);
    if (impl.speculator) {
        // The speculator cannot be shown hidden states any more that it has not seen, so the target evaluates their
        // tokens again.
        impl.target.keep_prefix(held, std::min(impl.target.n_past(), impl.speculator->n_known(held)));
        if (!extends || impl.target.n_past() < impl.sequence.n_history()) {
            impl.speculator->cut(held, impl.target.n_past());
        }
    }
    impl.sequence.begin_from_memory();
    impl.has_begun = false;
}

void Session::set_sampling(const SamplingConfig & sampling) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    impl.sampler.set(sampling);
}

const Step & Session::step() {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (!impl.sequence.has_prompt()) {
        throw InputError("the session has no prompt: call prefill() first");
    }
    impl.advance();
    return impl.result;
}

const Step & Session::last_step() const { return impl_->result; }

TokenProbabilities Session::probabilities(int n_top) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (!impl.sequence.has_prompt() || !impl.has_logits) {
        throw InputError("the logits of the last step are gone: ask for probabilities right after step()");
    }
    return token_probabilities(impl.target.get(), impl.result.tokens, n_top);
}

void Session::reset() {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    impl.interrupt.clear();
    impl.target.clear();
    if (impl.speculator) {
        impl.speculator->clear();
    }
    impl.cache.clear();
    impl.sequence.clear();
    impl.result = Step{};
}

void Session::cancel() noexcept { impl_->interrupt.cancel(); }

void Session::set_draft_length(int n) {
    if (n < 0 || n > impl_->draft_max) {
        throw InputError("the draft length is " + std::to_string(n) + ", expected a value from 0 to draft_max, " +
                         std::to_string(impl_->draft_max));
    }
    impl_->draft_length.store(n);
}

int Session::draft_length() const { return impl_->draft_length.load(); }

int Session::draft_max() const { return impl_->draft_max; }

void Session::set_listeners(const Listeners & listeners) {
    const Interrupt::Call call(impl_->interrupt);
    if (impl_->speculator) {
        impl_->speculator->keep_routes(listeners.draft_routes);
    } else if (listeners.draft_routes) {
        throw InputError("the draft's routes were asked for, and nothing is drafted");
    }
    impl_->listeners = listeners;
    impl_->demand.set_layer_listener(listeners.verify_layer);
    impl_->interrupt.set_check(listeners.interrupt_check);
}

int Session::n_reused() const { return impl_->n_reused; }

Session::Cached Session::cached() const { return impl_->cache.stats(); }

int Session::n_past() const { return impl_->target.n_past(); }

int Session::n_ctx() const { return impl_->target.n_ctx(); }

std::vector<int32_t> Session::tokens() const { return impl_->sequence.tokens(); }

} // namespace spac
