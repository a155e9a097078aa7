#include "session/verifier.h"

#include "core/error.h"
#include "session/clock.h"
#include "session/sampler.h"

#include <algorithm>

namespace spac {

Verifier::Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling,
                   Interrupt & interrupt)
    : target_(target), experts_(std::move(experts)), interrupt_(interrupt),
      sampling_(sampling_params(sampling, target.model(), target.n_ctx())),
      sampler_(make_sampler(target.model(), sampling_)), batch_(target.get()) {
    if (experts_) {
        experts_->set_counting(false);
    }
}

void Verifier::set_step_tokens(int n_tokens) {
    if (!experts_) {
        return;
    }
    constexpr int default_step_tokens = 64; // as the backend starts with: other users of the model may rely on it
    experts_->set_step_tokens(std::max(default_step_tokens, n_tokens));
    Step before;
    take_demand(before); // what others left
}

void Verifier::begin(const int32_t * prompt, size_t n_tokens) {
    // A sampler cannot be reset as a whole: its grammar would stay where it is.
    sampler_ = make_sampler(target_.model(), sampling_);
    for (size_t i = 0; i < n_tokens; ++i) {
        common_sampler_accept(sampler_.get(), prompt[i], false);
    }
}

const common_batch & Verifier::verify(llama_token last, const llama_tokens & draft, Step & step) {
    int pos = target_.n_past();
    batch_.clear();
    batch_.add(last, pos++, 0, true);
    for (const auto token : draft) {
        batch_.add(token, pos++, 0, true);
    }
    const auto start = Clock::now();
    if (experts_) {
        experts_->set_counting(true);
    }
    try {
        target_.decode(batch_, interrupt_);
    } catch (...) {
        take_demand(step); // not to be mistaken for the next verification's
        throw;
    }
    take_demand(step);
    step.verify_ns  = since(start);
    step.n_verified = batch_.size();
    return batch_;
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
        demand_ = std::make_shared<std::vector<int32_t>>(n); // the layers became known with the first graph
    }
    experts_->take_demand(demand_->data());
    step.demand = demand_;
}

llama_tokens Verifier::sample(const llama_tokens & draft, Step & step) {
    const auto start    = Clock::now();
    auto       accepted = common_sampler_sample_and_accept_n(sampler_.get(), target_.get(), draft);
    step.sample_ns      = since(start);
    return accepted;
}

} // namespace spac
