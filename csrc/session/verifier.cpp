#include "session/verifier.h"

#include "core/error.h"
#include "session/clock.h"
#include "session/sampler.h"

#include <algorithm>
#include <exception>
#include <thread>

namespace spac {

Verifier::Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling,
                   Interrupt & interrupt, Trace & trace)
    : target_(target), experts_(std::move(experts)), interrupt_(interrupt),
      sampling_(sampling_params(sampling, target.model(), target.n_ctx())),
      sampler_(make_sampler(target.model(), sampling_)), batch_(target.get()), trace_(trace) {
    if (experts_) {
        experts_->set_counting(false);
    }
}

void Verifier::set_step_tokens(int n_tokens) {
    if (!experts_) {
        return;
    }
    constexpr int default_step_tokens = 64; // the backend starts with it: other users of the model may rely on it
    experts_->set_step_tokens(std::max(default_step_tokens, n_tokens));
    Step before;
    take_demand(before); // drops what others left
}

void Verifier::set_sampling(const SamplingConfig & sampling) {
    auto params = sampling_params(sampling, target_.model(), target_.n_ctx());
    make_sampler(target_.model(), params); // a grammar shows its faults only here
    sampling_ = std::move(params);
}

void Verifier::begin(const int32_t * prompt, size_t n_tokens) {
    // A sampler cannot be reset as a whole: its grammar would stay where it is.
    sampler_    = make_sampler(target_.model(), sampling_);
    has_logits_ = false;
    for (size_t i = 0; i < n_tokens; ++i) {
        if (!is_placeholder(prompt[i])) {
            common_sampler_accept(sampler_.get(), prompt[i], false);
        }
    }
}

const common_batch & Verifier::verify(llama_token last, const llama_tokens & draft, Step & step) {
    int pos     = target_.position(target_.n_past());
    has_logits_ = false;
    batch_.clear();
    batch_.add(last, pos++, 0, true);
    for (const auto token : draft) {
        batch_.add(token, pos++, 0, true);
    }
    SpanScope scope(trace_, Activity::verify);
    scope.span.count = batch_.size();
    const auto start = Clock::now();
    if (experts_) {
        experts_->set_counting(true);
    }
    try {
        decode();
    } catch (...) {
        take_demand(step); // so that it is not mistaken for the next verification's
        throw;
    }
    take_demand(step);
    step.verify_ns  = since(start);
    step.n_verified = batch_.size();
    return batch_;
}

// Decodes the batch, and calls the layer listener for each layer.
void Verifier::decode() {
    if (!experts_ || !on_layer_) {
        target_.decode(batch_, interrupt_);
        return;
    }
    // An exception must not cross llama.cpp, so it is kept here. The state is shared, because a call of another
    // thread's decoding may end later than this one.
    struct State {
        std::thread::id    here = std::this_thread::get_id();
        std::exception_ptr failure;
    };
    const auto state = std::make_shared<State>();
    experts_->set_layer_listener([this, state](int il, const std::vector<int32_t> & demand) {
        if (std::this_thread::get_id() != state->here || state->failure) {
            return;
        }
        try {
            on_layer_(il, demand);
        } catch (...) {
            state->failure = std::current_exception();
        }
    });
    try {
        target_.decode(batch_, interrupt_);
    } catch (...) {
        experts_->set_layer_listener(nullptr);
        throw;
    }
    experts_->set_layer_listener(nullptr);
    if (state->failure) {
        std::rethrow_exception(state->failure);
    }
}

void Verifier::take_demand(Step & step) {
    if (!experts_) {
        return;
    }
    experts_->set_counting(false);
    step.n_layer   = experts_->n_layer();
    step.n_expert  = experts_->n_expert();
    const size_t n = static_cast<size_t>(step.n_layer) * static_cast<size_t>(step.n_expert);
    if (n != demand_->size()) {
        // The layers became known with the first graph.
        demand_ = std::make_shared<std::vector<int32_t>>(n);
        costs_  = std::make_shared<std::vector<LayerCost>>(step.n_layer);
    }
    experts_->take_demand(demand_->data());
    experts_->take_layer_costs(costs_->data());
    step.demand      = demand_;
    step.layer_costs = costs_;
    count_uploads(step);
}

void Verifier::count_uploads(Step & step) {
    const ExpertStats now = experts_->stats();
    step.n_uploads        = now.uploads - uploaded_.uploads;
    step.upload_bytes     = now.upload_bytes - uploaded_.upload_bytes;
    step.upload_ns        = now.upload_ns - uploaded_.upload_ns;
    uploaded_             = now;
}

llama_tokens Verifier::sample(const llama_tokens & draft, Step & step) {
    SpanScope  scope(trace_, Activity::sample);
    const auto start    = Clock::now();
    auto       accepted = common_sampler_sample_and_accept_n(sampler_.get(), target_.get(), draft);
    has_logits_         = true;
    step.sample_ns      = since(start);
    scope.span.count    = static_cast<int32_t>(accepted.size()) - 1;
    return accepted;
}

} // namespace spac
