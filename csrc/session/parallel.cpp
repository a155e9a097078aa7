#include "session/parallel.h"

#include "session/parallel_impl.h"
#include "session/session.h"
#include "session/speculator.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

ParallelSession::Impl::Impl(const SessionConfig & config, bool is_separate)
    : trace(config.trace     ? config.trace
            : config.experts ? config.experts->trace()
                             : std::make_shared<Trace>()),
      ctx(Context::checked_target(config.target_ctx)), separate(is_separate), places(ctx), prompt_graph(ctx),
      experts(config.experts), demand(config.experts), cache(config.prompt_cache_bytes), batch(ctx) {
    if (Context::has_recurrent_model(ctx)) {
        throw InputError("the target's memory is recurrent: several sequences need one that can go back to any token");
    }
    if (config.projector != nullptr) {
        throw InputError("several sequences at once cannot have images");
    }
    llama_memory_clear(llama_get_memory(ctx), false);
    const auto & target = places[0].target;
    const int    n_seq  = places.size();
    if (drafts_itself(config.draft)) {
        throw InputError("a target drafts for itself with one sequence only: choose another draft type for several");
    }
    if (config.draft.n_max > 0 && !speculative_params(config.draft).types.empty()) {
        check_rollback(target, config.draft.n_max);
        std::vector<Context *> targets;
        for (int i = 0; i < n_seq; ++i) {
            targets.push_back(&places[static_cast<size_t>(i)].target);
        }
        drafts = std::make_unique<ParallelDrafts>(config.draft, targets, static_cast<llama_context *>(config.draft_ctx),
                                                  interrupt);
        draft_max = config.draft.n_max;
    }
    const int n_window = n_seq * (draft_max + 1);
    if (target.n_batch() < n_window) {
        throw InputError("the windows of " + std::to_string(n_seq) + " sequences have up to " +
                         std::to_string(n_window) + " tokens: make the target context with n_batch of at least that");
    }
    target.check_rows(target.n_batch(), n_window);
    demand.set_step_tokens(n_window);
    interrupt.attach(ctx);
    if (config.experts) {
        config.experts->set_staged_tokens(target.n_ubatch());
    }
}

ParallelSession::Impl::~Impl() {
    drafts.reset();
    interrupt.detach(ctx);
}

ParallelSession::ParallelSession(const SessionConfig & config, bool separate)
    : impl_(std::make_unique<Impl>(config, separate)) {}

ParallelSession::~ParallelSession() = default;

int ParallelSession::join(const int32_t * tokens, size_t n_tokens, const JoinConfig & config) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (n_tokens == 0) {
        throw InputError("the prompt is empty, expected at least one token");
    }
    impl.places[0].sequence.check(tokens, n_tokens, nullptr);
    const llama_tokens wanted(tokens, tokens + n_tokens - 1);
    auto &             place = impl.places.choose(wanted);
    TokenSampler       sampler(config.sampling, place.target.model(), place.target.n_ctx());
    const size_t       n_unseen = std::min(config.n_unseen, n_tokens);
    sampler.begin(tokens + n_unseen, n_tokens - n_unseen);

    place.id    = impl.next_id++;
    place.since = ++impl.clock;
    place.n_top = config.n_top;
    place.sampler.emplace(std::move(sampler));
    impl.cache.exchange(wanted, place.target, nullptr);
    if (!impl.separate) {
        impl.places.share(place, wanted);
    }
    place.target.keep_prefix(wanted, static_cast<int>(wanted.size()));
    place.n_reused = place.target.n_past();
    place.sequence.begin(wanted, tokens[n_tokens - 1]);
    if (impl.drafts) {
        impl.drafts->begin(place.index, wanted, place.n_reused);
        if (place.sequence.n_pending() == 0) {
            impl.drafts->read(place.index, wanted, place.sequence.n_history());
        }
    }
    return place.id;
}

void ParallelSession::leave(int id) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    auto &                place = impl.places.of(id);
    place.id                    = -1;
    place.since                 = ++impl.clock;
    place.parked                = false;
    place.past                  = Remembered();
    place.sampler.reset();
    place.sequence.begin_from_memory();
}

void ParallelSession::hand_over() noexcept { impl_->hands_over.store(true); }

void ParallelSession::cancel() noexcept { impl_->interrupt.cancel(); }

void ParallelSession::set_listeners(const Listeners & listeners) {
    const Interrupt::Call call(impl_->interrupt);
    if (listeners.draft_routes) {
        throw InputError("the draft's routes are not known with several sequences at once");
    }
    impl_->listeners = listeners;
    impl_->demand.set_layer_listener(listeners.verify_layer);
    impl_->interrupt.set_check(listeners.interrupt_check);
}

int ParallelSession::n_sequences() const { return impl_->places.size(); }

int ParallelSession::n_joined() const { return impl_->places.n_joined(); }

int ParallelSession::n_ctx() const { return impl_->places[0].target.n_ctx(); }

int ParallelSession::draft_max() const { return impl_->draft_max; }

int ParallelSession::n_reused(int id) const { return impl_->places.of(id).n_reused; }

std::vector<int32_t> ParallelSession::tokens(int id) const { return impl_->places.of(id).sequence.tokens(); }

std::vector<ParallelSession::Held> ParallelSession::held() const {
    std::vector<Held> all;
    for (int i = 0; i < n_sequences(); ++i) {
        const auto & place = impl_->places[static_cast<size_t>(i)];
        all.push_back({place.id, place.parked, place.target.tokens()});
    }
    return all;
}

void ParallelSession::replace(size_t place_index, const std::vector<int32_t> & tokens, const uint8_t * state,
                              size_t n_bytes) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    if (place_index >= static_cast<size_t>(n_sequences()) || !impl.places[place_index].is_free()) {
        throw InputError("place " + std::to_string(place_index) + " is in use, or there is none");
    }
    auto & place = impl.places[place_index];
    if (!tokens.empty()) {
        place.sequence.check(tokens.data(), tokens.size(), nullptr);
    }
    auto before = place.target.remember();
    place.target.clear();
    if (!tokens.empty()) {
        Remembered wanted;
        wanted.tokens = tokens;
        wanted.state  = MemoryState(state, n_bytes);
        if (impl.places.make_room(place, static_cast<int>(tokens.size()))) {
            place.target.recall(std::move(wanted));
        }
        if (place.target.n_past() == 0) {
            place.target.recall(std::move(before));
            place.sequence.begin_from_memory();
            throw InputError("the memory does not take the state of " + std::to_string(tokens.size()) + " tokens");
        }
    }
    if (impl.drafts) {
        impl.drafts->begin(place_index, place.target.tokens(), place.target.n_past());
    }
    place.sequence.begin_from_memory();
}

Session::Cached ParallelSession::cached() const { return impl_->cache.stats(); }

} // namespace spac
