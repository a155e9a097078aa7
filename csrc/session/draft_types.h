// What the draft types need of contexts and parameters, checked before llama.cpp would abort on it.
#pragma once

#include "session/context.h"
#include "session/session.h"
#include "speculative.h"

#include <optional>
#include <vector>

namespace spac {

// Throws InputError for unknown names, two types that would share the draft context, and sizes out of range. Without a
// type, `types` is empty.
common_params_speculative speculative_params(const DraftConfig & config);

// The type that uses the draft context, if there is one.
std::optional<common_speculative_type> draft_model_type(const std::vector<common_speculative_type> & types);

// Throws InputError when `draft_ctx` cannot serve `type` for this target.
void check_draft_context(std::optional<common_speculative_type> type, const Context & target, llama_context * draft_ctx,
                         int n_max);

// Throws InputError when the target cannot be rolled back after a verification with `n_max` drafted tokens. Decodes two
// tokens to find out, and leaves the memory empty.
void check_rollback(const Context & target, int n_max);

} // namespace spac
