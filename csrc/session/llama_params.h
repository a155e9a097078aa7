// Parameters of llama.cpp's models and contexts, by the names of their fields.
#pragma once

#include "llama.h"
#include "session/llama_models.h"

#include <vector>

namespace spac {

// Set fields. Throw InputError for an unknown one, with a list of those known, and for a value that it cannot have.
void set_fields(const Fields & fields, llama_model_params & params);
void set_fields(const Fields & fields, llama_context_params & params);

// Returns entries for llama_model_params.kv_overrides. The last one has an empty key.
std::vector<llama_model_kv_override> entries_of(const Overrides & overrides);

} // namespace spac
