// Checks the contexts and parameters that draft types need, before llama.cpp would abort on them.
#pragma once

#include "session/context.h"
#include "session/session.h"
#include "speculative.h"

#include <optional>
#include <vector>

namespace spac {

// Returns llama.cpp's parameters; `types` is empty without a type. Throws InputError for unknown names, two types that
// would share the draft context, and sizes out of range.
common_params_speculative speculative_params(const DraftConfig & config);

// Returns the type that uses the draft context, if there is one.
std::optional<common_speculative_type> draft_model_type(const std::vector<common_speculative_type> & types);

// Throws InputError if `draft_ctx` cannot serve `type` for this target.
void check_draft_context(std::optional<common_speculative_type> type, const Context & target, llama_context * draft_ctx,
                         int n_max);

// Throws InputError if the target cannot be rolled back after a verification with `n_max` drafted tokens. Decodes two
// tokens to find out, and leaves the memory empty.
void check_rollback(const Context & target, int n_max);

} // namespace spac
