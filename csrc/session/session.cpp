#include "session/session.h"

#include "log.h"
#include "session/clock.h"
#include "session/context.h"
#include "session/draft_types.h"
#include "session/interrupt.h"
#include "session/speculator.h"
#include "session/verifier.h"

#include <atomic>
#include <mutex>

namespace spac {

namespace {

// common logs through a thread of its own, to stderr. Errors reach the caller as exceptions anyway.
std::once_flag default_verbosity;

std::shared_ptr<Trace> trace_of(const SessionConfig & config) {
    return config.trace ? config.trace : config.experts ? config.experts->trace() : std::make_shared<Trace>();
}

bool is_prefix(const llama_tokens & a, const llama_tokens & b) {
    return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

} // namespace

void set_common_verbosity(int level) {
    std::call_once(default_verbosity, [] {});
    common_log_set_verbosity_thold(level);
}

const char * to_string(StopReason reason) {
    switch (reason) {
    case StopReason::stop:
        return "stop";
    case StopReason::length:
        return "length";
    default:
        return "";
    }
}

struct Session::Impl {
    explicit Impl(const SessionConfig & config);
    ~Impl();

    // Marks the session as in use, for one call.
    class Use {
      public:
        explicit Use(Impl & impl) : impl_(impl) {
            if (impl_.busy.exchange(true)) {
                throw InputError(
                    "the session is in use: one call at a time, and none but set_draft_length() and cancel() "
                    "from a callback");
            }
            impl_.interrupt.enter();
        }
        ~Use() {
            impl_.interrupt.leave();
            impl_.busy.store(false);
        }
        Use(const Use &)             = delete;
        Use & operator=(const Use &) = delete;

      private:
        Impl & impl_;
    };

    void         check_tokens(const int32_t * tokens, size_t n_tokens) const;
    void         evaluate_prompt(const Progress & progress = {});
    void         observe(const common_batch & decoded, int pos);
    int          next_draft_length() const;
    void         draft();
    llama_tokens verify();
    llama_tokens sample();
    void         commit(const llama_tokens & accepted);
    int          n_pending() const;

    std::shared_ptr<Trace>      trace;
    Interrupt                   interrupt; // outlives the contexts' use of it: declared before them
    Context                     target;
    Verifier                    verifier;
    std::unique_ptr<Speculator> speculator;
    common_batch                batch;
    Listeners                   listeners;

    // The sequence is `history`, then `last`. The target's memory holds a prefix of `history`: all of it between steps,
    // less only after a prefill was stopped or a recurrent memory had to be cleared.
    llama_tokens history;
    llama_token  last       = LLAMA_TOKEN_NULL;
    bool         has_prompt = false;
    bool         has_begun  = false; // the speculator knows of the prompt

    llama_tokens      drafted;
    Step              result;
    std::atomic<int>  draft_length{0};
    int               draft_max = 0;
    std::atomic<bool> busy{false};
};

Session::Impl::Impl(const SessionConfig & config)
    : trace(trace_of(config)), target(Context::checked_target(config.target_ctx), "target"),
      verifier(target, config.experts, config.sampling, interrupt, *trace), batch(target.get()) {
    std::call_once(default_verbosity, [] { common_log_set_verbosity_thold(-1); });

    target.clear();
    const auto types = speculative_params(config.draft).types;
    if (config.draft.n_max > 0 && !types.empty()) {
        if (target.n_batch() < config.draft.n_max + 1) {
            throw InputError("a draft of " + std::to_string(config.draft.n_max) +
                             " tokens needs a target context with n_batch of at least " +
                             std::to_string(config.draft.n_max + 1) + ", it has " + std::to_string(target.n_batch()));
        }
        check_rollback(target, config.draft.n_max);
        speculator = std::make_unique<Speculator>(config.draft, target, static_cast<llama_context *>(config.draft_ctx),
                                                  interrupt);
        draft_max  = config.draft.n_max;
        draft_length.store(draft_max);
    }
    verifier.set_step_tokens(draft_max + 1);
    interrupt.attach(target.get());
}

Session::Impl::~Impl() {
    speculator.reset();
    interrupt.detach(target.get());
}

void Session::Impl::check_tokens(const int32_t * tokens, size_t n_tokens) const {
    if (n_tokens > static_cast<size_t>(target.n_ctx())) {
        throw InputError("the prompt has " + std::to_string(n_tokens) + " tokens, the context holds " +
                         std::to_string(target.n_ctx()) + ": shorten the prompt or make n_ctx larger");
    }
    for (size_t i = 0; i < n_tokens; ++i) {
        if (tokens[i] < 0 || tokens[i] >= target.n_vocab()) {
            throw InputError("token " + std::to_string(i) + " of the prompt is " + std::to_string(tokens[i]) +
                             ", the vocabulary has tokens 0 to " + std::to_string(target.n_vocab() - 1));
        }
    }
}

int Session::Impl::n_pending() const { return static_cast<int>(history.size()) - target.n_past(); }

// Evaluates what the target's memory lacks of the history, in pieces that both contexts can take.
void Session::Impl::evaluate_prompt(const Progress & progress) {
    const int n_batch = speculator ? speculator->n_batch() : target.n_batch();
    const int n_total = static_cast<int>(history.size());
    while (n_pending() > 0) {
        interrupt.raise_if_stopped();
        const int pos = target.n_past();
        const int n   = std::min(n_batch, n_pending());
        batch.clear();
        for (int i = 0; i < n; ++i) {
            batch.add(history[static_cast<size_t>(pos + i)], pos + i, 0, false);
        }
        {
            SpanScope scope(*trace, Activity::prefill);
            scope.span.count = n;
            target.decode(batch, interrupt);
        }
        observe(batch, pos);
        if (progress) {
            progress(target.n_past(), n_total);
        }
    }
    if (speculator && !has_begun) {
        speculator->begin(history, draft_length.load() > 0);
    }
    has_begun = true;
    interrupt.raise_if_stopped();
}

// Shows the speculator what the target has decoded at `pos`. When that fails, both forget it: they are one step apart
// otherwise, and stay so.
void Session::Impl::observe(const common_batch & decoded, int pos) {
    if (!speculator) {
        return;
    }
    try {
        SpanScope scope(*trace, Activity::observe);
        scope.span.count = decoded.size();
        speculator->observe(decoded);
    } catch (...) {
        target.trim(pos);
        throw;
    }
}

// The draft and the token before it must fit into the context.
int Session::Impl::next_draft_length() const {
    const int room = target.n_ctx() - static_cast<int>(history.size()) - 1;
    return speculator ? std::min({draft_length.load(), speculator->n_max(), room}) : 0;
}

void Session::Impl::draft() {
    const auto start = Clock::now();
    drafted.clear();
    const int n = next_draft_length();
    if (n > 0) {
        SpanScope scope(*trace, Activity::draft);
        drafted          = speculator->draft(history, last, n, listeners.draft_token);
        scope.span.count = static_cast<int32_t>(drafted.size());
    }
    result.draft_ns  = since(start);
    result.n_drafted = static_cast<int>(drafted.size());
    if (listeners.draft_end) {
        listeners.draft_end(drafted, result.draft_ns);
    }
}

// The accepted tokens and the target's own. Until they are committed, an exception leaves the sequence as it was.
llama_tokens Session::Impl::verify() {
    interrupt.raise_if_stopped();
    try {
        observe(verifier.verify(last, drafted, result), static_cast<int>(history.size()));
        return sample();
    } catch (...) {
        target.trim(static_cast<int>(history.size()));
        throw;
    }
}

llama_tokens Session::Impl::sample() {
    try {
        return verifier.sample(drafted, result);
    } catch (const std::exception & error) {
        has_prompt = false; // the sampler may have taken some of the tokens: only a new prompt makes it whole
        throw InternalError(std::string("the sampler failed, prefill the session anew: ") + error.what());
    }
}

// Makes the accepted tokens part of the sequence. The last of them is the target's own: not in its memory yet.
void Session::Impl::commit(const llama_tokens & accepted) {
    history.push_back(last);
    history.insert(history.end(), accepted.begin(), accepted.end() - 1);
    last              = accepted.back();
    result.tokens     = accepted;
    result.n_accepted = static_cast<int>(accepted.size()) - 1;
    target.trim(static_cast<int>(history.size()));

    if (llama_vocab_is_eog(target.vocab(), last)) {
        result.reason = StopReason::stop;
    } else if (static_cast<int>(history.size()) >= target.n_ctx()) {
        result.reason = StopReason::length;
    }
}

Session::Session(const SessionConfig & config) : impl_(std::make_unique<Impl>(config)) {}

Session::~Session() = default;

void Session::prefill(const int32_t * tokens, size_t n_tokens, const Progress & progress, size_t n_unseen) {
    auto &          impl = *impl_;
    const Impl::Use use(impl);
    if (n_tokens == 0) {
        throw InputError("the prompt is empty, expected at least one token");
    }
    impl.check_tokens(tokens, n_tokens);
    const llama_tokens wanted(tokens, tokens + n_tokens - 1);
    const bool         extends = is_prefix(impl.history, wanted);
    impl.target.keep_prefix(wanted, static_cast<int>(wanted.size()));
    if (impl.speculator && !extends) {
        impl.speculator->cut(wanted, impl.target.n_past());
    }
    impl.history    = wanted;
    impl.last       = tokens[n_tokens - 1];
    impl.has_prompt = true;
    impl.has_begun  = false;

    n_unseen = std::min(n_unseen, n_tokens);
    impl.verifier.begin(tokens + n_unseen, n_tokens - n_unseen);
    impl.evaluate_prompt(progress);
}

void Session::adopt(const int32_t * tokens, size_t n_tokens) {
    auto &          impl = *impl_;
    const Impl::Use use(impl);
    impl.check_tokens(tokens, n_tokens);
    const llama_tokens held(tokens, tokens + n_tokens);
    const bool         extends = is_prefix(impl.history, held);
    impl.target.adopt(held);
    if (impl.speculator) {
        // Hidden states that it has not seen cannot be shown to it any more: the target will evaluate these anew.
        impl.target.trim(std::min(impl.target.n_past(), impl.speculator->n_known(held)));
        if (!extends || impl.target.n_past() < static_cast<int>(impl.history.size())) {
            impl.speculator->cut(held, impl.target.n_past());
        }
    }
    impl.history    = impl.target.tokens();
    impl.has_prompt = false;
    impl.has_begun  = false;
}

void Session::set_sampling(const SamplingConfig & sampling) {
    auto &          impl = *impl_;
    const Impl::Use use(impl);
    impl.verifier.set_sampling(sampling);
}

const Step & Session::step() {
    auto &          impl = *impl_;
    const Impl::Use use(impl);
    if (!impl.has_prompt) {
        throw InputError("the session has no prompt: call prefill() first");
    }
    impl.evaluate_prompt();
    if (static_cast<int>(impl.history.size()) >= impl.target.n_ctx()) {
        impl.result        = Step{};
        impl.result.reason = StopReason::length;
        return impl.result;
    }
    impl.result = Step{};
    impl.draft();
    impl.commit(impl.verify());
    if (impl.speculator && !impl.drafted.empty()) {
        impl.speculator->accept(impl.result.n_accepted, impl.history);
    }
    if (impl.listeners.verify_end) {
        impl.listeners.verify_end(impl.result);
    }
    return impl.result;
}

const Step & Session::last_step() const { return impl_->result; }

void Session::reset() {
    auto &          impl = *impl_;
    const Impl::Use use(impl);
    impl.interrupt.clear();
    impl.target.clear();
    if (impl.speculator) {
        impl.speculator->clear();
    }
    impl.history.clear();
    impl.has_prompt = false;
    impl.result     = Step{};
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
    const Impl::Use use(*impl_);
    impl_->listeners = listeners;
    impl_->verifier.set_layer_listener(listeners.verify_layer);
    impl_->interrupt.set_check(listeners.interrupt_check);
}

int Session::n_past() const { return impl_->target.n_past(); }

int Session::n_ctx() const { return impl_->target.n_ctx(); }

std::vector<int32_t> Session::tokens() const {
    auto all = impl_->history;
    if (impl_->has_prompt) {
        all.push_back(impl_->last);
    }
    return all;
}

} // namespace spac
