// Makes llama.cpp's sampler chain from a SamplingConfig.
#pragma once

#include "sampling.h"
#include "session/session.h"

namespace spac {

// Returns llama.cpp's parameters. Checks every value that llama.cpp would abort on or misread, and throws InputError
// with the parameter's name and range.
common_params_sampling sampling_params(const SamplingConfig & config, const llama_model * model, int n_ctx);

// Returns a sampler at its start (seeded, grammar at its root). Throws InputError if the grammar cannot be parsed.
common_sampler_ptr make_sampler(const llama_model * model, common_params_sampling params);

// Returns the error for the exception that a sampler has thrown. Call it where that is caught.
std::exception_ptr sampler_fault();

} // namespace spac
