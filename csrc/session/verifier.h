// The target's side of a step: it decodes the draft, counts the demand for experts, and samples.
#pragma once

#include "common.h"
#include "session/context.h"
#include "session/expert_demand.h"
#include "session/session.h"
#include "session/token_sampler.h"

#include <memory>

namespace spac {

class Interrupt;

class Verifier {
  public:
    // `experts` may be null. Throws InputError for invalid sampling settings.
    Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling, Interrupt & interrupt,
             Trace & trace);

    // These are ExpertDemand's and TokenSampler's.
    void set_step_tokens(int n_tokens) { demand_.set_step_tokens(n_tokens); }
    void set_sampling(const SamplingConfig & sampling) { sampler_.set(sampling); }
    void set_layer_listener(ExpertDemand::LayerListener listener) { demand_.set_layer_listener(std::move(listener)); }

    // Begins a new prompt: the sampler starts anew and has seen these tokens.
    void begin(const int32_t * prompt, size_t n_tokens);

    // Decodes `last` and the draft after it, takes the demand, and fills in the step's counts and times. The batch is
    // valid until the next call. An exception leaves the target's memory and the demand as they were.
    const common_batch & verify(llama_token last, const llama_tokens & draft, Step & step);

    // Returns the draft tokens that the target accepts, then its own. Must be called once after verify().
    llama_tokens sample(const llama_tokens & draft, Step & step);

    // Returns true if the target's logits are those that the last sample() chose by: token i by row i.
    bool has_logits() const { return has_logits_; }

  private:
    Context &    target_;
    Interrupt &  interrupt_;
    ExpertDemand demand_;
    TokenSampler sampler_;
    common_batch batch_;
    Trace &      trace_;
    bool         has_logits_ = false;
};

} // namespace spac
