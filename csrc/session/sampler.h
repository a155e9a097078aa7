// From SamplingConfig to llama.cpp's sampler chain.
#pragma once

#include "sampling.h"
#include "session/session.h"

namespace spac {

// Checks every value that llama.cpp would abort on or misread. Throws InputError naming the parameter and its range.
common_params_sampling sampling_params(const SamplingConfig & config, const llama_model * model, int n_ctx);

// A sampler at its start (seeded, grammar at its root). Throws InputError when the grammar cannot be parsed.
common_sampler_ptr make_sampler(const llama_model * model, common_params_sampling params);

} // namespace spac
