#include "session/session.h"

#include "session/clock.h"
#include "session/common_log.h"
#include "session/context.h"
#include "session/draft_types.h"
#include "session/graph_size.h"
#include "session/interrupt.h"
#include "session/prompt_cache.h"
#include "session/sequence.h"
#include "session/speculator.h"
#include "session/step_run.h"
#include "session/verifier.h"

#include <algorithm>
#include <atomic>

namespace spac {

namespace {

// A checkpoint is kept so many tokens before a prompt's end. What the prompt has of the coming answer (its opening tag,
// say) is often not there any more when the conversation goes on.
constexpr int tail_tokens = 8;
// The smallest distance between two checkpoints: a nearer one saves nothing.
constexpr int checkpoint_gap = 64;
// The tokens of a piece of several small graphs. Between pieces, a call can be stopped, and its progress is reported.
constexpr int piece_tokens = 2048;
// Large graphs are planned for multiples of so many tokens, so that prompts of similar length share the buffers.
constexpr int graph_step = 256;
// Tokens at a prompt's end whose routes are shown to the listener: enough for a scheduler to see what comes now.
constexpr int route_tokens = 32;

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

struct Session::Impl {
    explicit Impl(const SessionConfig & config);
    ~Impl();

    void start_drafts(llama_context * draft_ctx);
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

    llama_tokens               drafted;
    Step                       result;
    std::atomic<int>           draft_length{0};
    DraftConfig                draft_config;
    std::shared_ptr<Experts>   draft_experts;
    std::shared_ptr<ShortHead> draft_head;
    bool                       dropped         = false; // true after drop_drafts()
    int                        draft_max       = 0;
    int                        checkpoint_step = 0;
    int                        n_reused        = 0;
    int                        small_graph     = 0; // tokens of the target's graphs when the session was made
    int                        graph           = 0; // tokens of the next graph of the current prompt
    int failed_graph = 0; // tokens of the smallest graph that had no memory in this prompt; 0: none
};

Session::Impl::Impl(const SessionConfig & config)
    : trace(trace_of(config)), experts(config.experts), projector(config.projector), target(checked_target(config)),
      sequence(target), verifier(target, config.experts, config.sampling, interrupt, *trace),
      cache(config.prompt_cache_bytes), batch(target.get()), draft_config(config.draft),
      draft_experts(self_pass(config.draft) != DraftPass::none ? config.experts : config.draft_experts),
      draft_head(config.draft_head), checkpoint_step(config.checkpoint_step) {
    silence_common_at_first();
    if (config.draft_experts && config.draft_experts == config.experts) {
        throw InputError("the draft's experts are the target's own: load the draft model beside it");
    }

    target.clear();
    const auto types = speculative_params(config.draft).types;
    const bool self  = self_pass(config.draft) != DraftPass::none;
    if (config.draft.n_max > 0 && (self || !types.empty())) {
        if (target.n_batch() < config.draft.n_max + 1) {
            throw InputError("a draft of " + std::to_string(config.draft.n_max) +
                             " tokens needs a target context with n_batch of at least " +
                             std::to_string(config.draft.n_max + 1) + ", it has " + std::to_string(target.n_batch()));
        }
        check_rollback(target, config.draft.n_max);
        start_drafts(static_cast<llama_context *>(config.draft_ctx));
        draft_length.store(draft_max);
    }
    target.check_rows(target.n_batch(), draft_max + 1);
    verifier.set_step_tokens(draft_max + 1);
    interrupt.attach(target.get());
    small_graph = graph = target.n_ubatch();
    if (config.experts) {
        config.experts->set_staged_tokens(small_graph);
    }
}

Session::Impl::~Impl() {
    speculator.reset();
    try {
        set_graph_tokens(target.get(), small_graph);
    } catch (const std::exception &) { // the context keeps its larger graphs
    }
    interrupt.detach(target.get());
}

void Session::Impl::start_drafts(llama_context * draft_ctx) {
    speculator = std::make_unique<Speculator>(draft_config, target, draft_ctx, draft_experts, draft_head, interrupt);
    draft_max  = draft_config.n_max;
    has_begun  = false;
}

// Evaluates the part of the history that the target's memory lacks, in pieces that both contexts can take.
void Session::Impl::evaluate_prompt(const Progress & progress) {
    failed_graph = 0;
    has_tail     = false;
    while (sequence.n_pending() > 0) {
        interrupt.raise_if_stopped();
        evaluate_piece();
        target.checkpoint(sequence.n_pending() == tail_tokens ? checkpoint_gap : checkpoint_step);
        if (progress) {
            progress(target.n_past(), sequence.n_history());
        }
    }
    if (drafting() != nullptr && !has_begun) {
        speculator->begin(sequence.history(), draft_length.load() > 0);
    }
    has_begun = true;
    if (has_tail) {
        listeners.prompt_tail();
    }
    interrupt.raise_if_stopped();
}

// Evaluates the next image, or text up to the next one.
void Session::Impl::evaluate_piece() {
    const int pos = target.n_past();
    if (const auto image = sequence.pending_image()) {
        SpanScope          scope(*trace, Activity::prefill);
        const auto * const piece = images != nullptr ? images->piece(*image) : nullptr;
        SPAC_CHECK(piece != nullptr, *image);
        target.decode(*piece, *image, interrupt);
        scope.span.count = target.n_past() - pos;
        return;
    }
    choose_graph(0);
    while (true) {
        try {
            evaluate_text();
            break;
        } catch (const MemoryError &) {
            if (!takes_smaller_graphs()) {
                throw;
            }
        }
    }
    observe(batch, pos);
}

// Evaluates the next piece of text on the target.
void Session::Impl::evaluate_text() {
    const int pos = target.n_past();
    if (drafting() != nullptr) {
        speculator->follow(pos);
    }
    batch.clear();
    sequence.add_pending(batch, next_piece());
    has_tail         = experts && listeners.prompt_tail && sequence.n_pending() == batch.size();
    const auto start = Clock::now();
    if (has_tail) {
        experts->set_tail_tokens(route_tokens);
    }
    try {
        SpanScope scope(*trace, Activity::prefill);
        scope.span.count = batch.size();
        target.decode(batch, interrupt);
    } catch (...) {
        end_tail();
        throw;
    }
    end_tail();
    if (listeners.prompt_piece) {
        listeners.prompt_piece(batch.size(), pos, since(start));
    }
}

void Session::Impl::end_tail() {
    if (has_tail) {
        experts->set_tail_tokens(0);
    }
}

// Chooses the size of the graphs of the next piece. Larger buffers than they need stay.
void Session::Impl::choose_graph(int n_failed) {
    graph = small_graph;
    while (listeners.prompt_graph) {
        const int wanted = std::min(listeners.prompt_graph(sequence.n_pending(), n_failed), target.n_batch());
        failed_graph     = n_failed > 0 ? n_failed : failed_graph;
        if (wanted <= small_graph || (failed_graph > 0 && wanted >= failed_graph)) {
            break;
        }
        try {
            if (n_failed > 0 || wanted > target.n_ubatch()) {
                set_graph_tokens(target.get(), (wanted + graph_step - 1) / graph_step * graph_step);
            }
            graph = wanted;
            return;
        } catch (const MemoryError &) {
            n_failed = wanted;
        }
    }
    if (n_failed > 0) {
        set_graph_tokens(target.get(), small_graph);
    }
}

// Returns true if memory did not suffice for the graphs, and smaller ones were chosen.
bool Session::Impl::takes_smaller_graphs() {
    const int failed = graph;
    if (failed <= small_graph) {
        return false;
    }
    choose_graph(failed);
    return true;
}

// Returns how many tokens are evaluated at once now, at most.
int Session::Impl::next_piece() const {
    // llama.cpp cuts a batch into graphs of n_ubatch, which is small at first
    const int n_small  = target.n_ubatch() > small_graph ? small_graph : std::max(small_graph, piece_tokens);
    const int n_wanted = graph > small_graph ? graph : n_small;
    const int n_batch  = std::min(n_wanted, drafting() != nullptr ? speculator->n_batch() : target.n_batch());
    const int tail     = sequence.n_history() - tail_tokens;
    const int n_most   = tail - target.n_past();
    return n_most > 0 && target.wants_checkpoint(tail, checkpoint_gap) ? std::min(n_batch, n_most) : n_batch;
}

// Shows the speculator what the target has decoded at `pos`. If that fails, both forget it: otherwise they would be one
// step apart, and stay so.
void Session::Impl::observe(const common_batch & decoded, int pos) {
    if (drafting() == nullptr) {
        return;
    }
    try {
        SpanScope scope(*trace, Activity::observe);
        scope.span.count = decoded.size();
        speculator->observe(decoded);
    } catch (...) {
        target.keep_prefix(target.tokens(), pos);
        throw;
    }
}

int Session::Impl::next_draft_length() const {
    return drafting() != nullptr ? std::min({draft_length.load(), speculator->n_max(), sequence.draft_room()}) : 0;
}

void Session::Impl::draft() {
    const auto start = Clock::now();
    drafted.clear();
    const int n = next_draft_length();
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
    result.draft_ns  = since(start);
    result.n_drafted = static_cast<int>(drafted.size());
    if (n > 0) {
        result.confidences = speculator->confidences();
    }
    if (listeners.draft_end) {
        listeners.draft_end(drafted, result.draft_ns, speculator ? speculator->routes() : nullptr);
    }
}

// Returns the accepted tokens and the target's own. Until they are committed, an exception leaves the sequence as it
// was.
llama_tokens Session::Impl::verify() {
    interrupt.raise_if_stopped();
    try {
        observe(verifier.verify(sequence.last(), drafted, result), sequence.n_history());
        return sample();
    } catch (...) {
        sequence.rewind();
        throw;
    }
}

llama_tokens Session::Impl::sample() {
    try {
        return verifier.sample(drafted, result);
    } catch (const std::exception & error) {
        // The sampler may have taken some of the tokens. Only a new prompt makes it whole.
        sequence.drop_prompt();
        throw InternalError(std::string("the sampler failed, prefill the session anew: ") + error.what());
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

    n_unseen = std::min(n_unseen, n_tokens);
    impl.verifier.begin(tokens + n_unseen, n_tokens - n_unseen);
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
    impl.verifier.set_sampling(sampling);
}

const Step & Session::step(const StepRun & run) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (!impl.sequence.has_prompt()) {
        throw InputError("the session has no prompt: call prefill() first");
    }
    StepTimer timer(run);
    Step      sum;
    do {
        impl.advance();
        add(sum, impl.result);
    } while (timer.goes_on() && impl.next_draft_length() == 0 && impl.result.n_drafted == 0 &&
             impl.result.reason == StopReason::none);
    impl.result = std::move(sum);
    return impl.result;
}

const Step & Session::last_step() const { return impl_->result; }

TokenProbabilities Session::probabilities(int n_top) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (!impl.sequence.has_prompt() || !impl.verifier.has_logits()) {
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

void Session::set_p_min(float p_min) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (impl.speculator == nullptr || !impl.speculator->is_stepwise()) {
        throw InputError("p_min can be changed only while a draft model or the target drafts token by token");
    }
    check_p_min(p_min);
    impl.draft_config.p_min = p_min;
    impl.speculator->set_p_min(p_min);
}

int Session::draft_length() const { return impl_->draft_length.load(); }

int Session::draft_max() const { return impl_->draft_max; }

void Session::drop_drafts() {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (impl.listeners.draft_routes) {
        throw InputError("the draft's routes are in use, so it has to stay");
    }
    impl.draft_length.store(0);
    impl.draft_max = 0;
    impl.drafted.clear();
    impl.speculator.reset();
    impl.draft_experts.reset();
    impl.draft_head.reset();
    impl.dropped = true;
}

void Session::resume_drafts(void * draft_ctx, std::shared_ptr<Experts> draft_experts,
                            std::shared_ptr<ShortHead> draft_head) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (!impl.dropped) {
        throw InputError("drafts were not dropped, so they cannot be resumed");
    }
    impl.draft_experts = std::move(draft_experts);
    impl.draft_head    = std::move(draft_head);
    impl.start_drafts(static_cast<llama_context *>(draft_ctx));
    impl.dropped = false;
}

void Session::set_listeners(const Listeners & listeners) {
    const Interrupt::Call call(impl_->interrupt);
    if (impl_->speculator) {
        impl_->speculator->keep_routes(listeners.draft_routes);
    } else if (listeners.draft_routes) {
        throw InputError("the draft's routes were asked for, and nothing is drafted");
    }
    impl_->listeners = listeners;
    impl_->verifier.set_layer_listener(listeners.verify_layer);
    impl_->interrupt.set_check(listeners.interrupt_check);
}

bool Session::has_images() const { return impl_->sequence.has_images(); }

int Session::n_reused() const { return impl_->n_reused; }

Session::Cached Session::cached() const { return impl_->cache.stats(); }

int Session::n_past() const { return impl_->target.n_past(); }

int Session::n_ctx() const { return impl_->target.n_ctx(); }

std::vector<int32_t> Session::tokens() const { return impl_->sequence.tokens(); }

} // namespace spac
