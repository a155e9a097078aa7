// llama.cpp's draft types, and spac's own: their names and parameters.
#pragma once

#include "session/session.h"
#include "speculative.h"

namespace spac {

// Returns true if the target drafts for itself, in its own context: the type is spac's own "self".
bool drafts_itself(const DraftConfig & config);

// Returns llama.cpp's parameters; `types` is empty without a type. Throws InputError for unknown names, and for two
// types that would share the draft context.
common_params_speculative speculative_params(const DraftConfig & config);

} // namespace spac
