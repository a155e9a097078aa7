// The target's side of a step: decoding the draft, counting what it demands of the experts, sampling.
#pragma once

#include "common.h"
#include "sampling.h"
#include "session/context.h"
#include "session/session.h"

#include <memory>
#include <vector>

namespace spac {

class Interrupt;

class Verifier {
  public:
    // `experts` may be null. Throws InputError for sampling parameters that cannot be.
    Verifier(Context & target, std::shared_ptr<Experts> experts, const SamplingConfig & sampling,
             Interrupt & interrupt);

    // Verifications have at most `n_tokens`: all of them count as demand.
    void set_step_tokens(int n_tokens);

    // A new prompt: the sampler starts anew and has seen these tokens.
    void begin(const int32_t * prompt, size_t n_tokens);

    // Decodes `last` and the draft after it, and takes the demand; fills in the step's counts and times. The batch is
    // valid until the next call. An exception leaves the target's memory and the demand as they were.
    const common_batch & verify(llama_token last, const llama_tokens & draft, Step & step);

    // The draft tokens that the target accepts, then its own. To be called once after verify().
    llama_tokens sample(const llama_tokens & draft, Step & step);

  private:
    void take_demand(Step & step);

    Context &                             target_;
    std::shared_ptr<Experts>              experts_;
    Interrupt &                           interrupt_;
    common_params_sampling                sampling_;
    common_sampler_ptr                    sampler_;
    common_batch                          batch_;
    std::shared_ptr<std::vector<int32_t>> demand_ = std::make_shared<std::vector<int32_t>>();
};

} // namespace spac
