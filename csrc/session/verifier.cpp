#include "session/verifier.h"

#include "backend/device/timer.h"

#include <utility>

namespace spac {

Verifier::Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling,
                   Interrupt & interrupt, Trace & trace)
    : target_(target), interrupt_(interrupt), demand_(std::move(experts)),
      sampler_(sampling, target.model(), target.n_ctx()), batch_(target.get()), trace_(trace) {}

void Verifier::begin(const int32_t * prompt, size_t n_tokens) {
    has_logits_ = false;
    sampler_.begin(prompt, n_tokens);
}

const common_batch & Verifier::verify(llama_token last, const llama_tokens & draft, Step & step) {
    has_logits_ = false;
    batch_.clear();
    target_.add_window(batch_, last, draft);
    SpanScope scope(trace_, Activity::verify);
    scope.span.count = batch_.size();
    const auto start = Clock::now();
    demand_.count([&] { target_.decode(batch_, interrupt_); }, step);
    demand_.take(step);
    step.verify_ns  = ns_since(start);
    step.n_verified = batch_.size();
    return batch_;
}

llama_tokens Verifier::sample(const llama_tokens & draft, Step & step) {
    SpanScope  scope(trace_, Activity::sample);
    const auto start    = Clock::now();
    auto       accepted = sampler_.sample(target_.get(), draft);
    has_logits_         = true;
    target_.note_logit(static_cast<int>(accepted.size()) - 1, accepted.back());
    step.sample_ns   = ns_since(start);
    scope.span.count = static_cast<int32_t>(accepted.size()) - 1;
    return accepted;
}

} // namespace spac
