// The target's side of a step: it decodes the draft, counts the demand for experts, and samples.
#pragma once

#include "common.h"
#include "sampling.h"
#include "session/context.h"
#include "session/session.h"

#include <functional>
#include <memory>
#include <vector>

namespace spac {

class Interrupt;

class Verifier {
  public:
    // `experts` may be null. Throws InputError for invalid sampling settings.
    Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling, Interrupt & interrupt,
             Trace & trace);

    // Sets the largest number of tokens of a verification: all of them count as demand.
    void set_step_tokens(int n_tokens);

    // Sets how to sample from the next begin() on. Throws InputError for invalid settings, and changes nothing then.
    void set_sampling(const SamplingConfig & sampling);

    // Sets the callback for the layers of every verification; see Listeners::verify_layer.
    using LayerListener = std::function<void(int layer, const std::vector<int32_t> & demand)>;
    void set_layer_listener(LayerListener listener) { on_layer_ = std::move(listener); }

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
    void decode();
    void take_demand(Step & step);
    void count_uploads(Step & step);

    Context &                               target_;
    std::shared_ptr<Experts>                experts_;
    Interrupt &                             interrupt_;
    common_params_sampling                  sampling_;
    common_sampler_ptr                      sampler_;
    common_batch                            batch_;
    Trace &                                 trace_;
    LayerListener                           on_layer_;
    std::shared_ptr<std::vector<int32_t>>   demand_     = std::make_shared<std::vector<int32_t>>();
    std::shared_ptr<std::vector<LayerCost>> costs_      = std::make_shared<std::vector<LayerCost>>();
    ExpertStats                             uploaded_   = {}; // counts at the step before
    bool                                    has_logits_ = false;
};

} // namespace spac
