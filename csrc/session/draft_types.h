// Checks the contexts and parameters that draft types need, before llama.cpp would abort on them.
#pragma once

#include "session/context.h"
#include "session/session.h"
#include "speculative.h"

#include <optional>
#include <vector>

namespace spac {

// Returns true if the target drafts for itself, in its own context: the type is spac's own "self". Throws InputError if
// others are named beside it.
bool drafts_itself(const DraftConfig & config);

// Returns llama.cpp's parameters; `types` is empty without a type. Throws InputError for unknown names, two types that
// would share the draft context, and sizes out of range.
common_params_speculative speculative_params(const DraftConfig & config);

// Returns the type that uses the draft context, if there is one.
std::optional<common_speculative_type> draft_model_type(const std::vector<common_speculative_type> & types);

// Throws InputError if `draft_ctx` cannot serve `type` for this target and `n_seq` sequences.
void check_draft_context(std::optional<common_speculative_type> type, const Context & target, llama_context * draft_ctx,
                         int n_max, int n_seq = 1);

// Throws InputError unless the target can draft for itself: its memory goes back to any place, and its experts have
// low-bit copies.
void check_self_draft(const Context & target, const std::shared_ptr<Experts> & experts);

// Throws InputError if the target cannot be rolled back after a verification with `n_max` drafted tokens. Decodes two
// tokens to find out, and leaves the memory empty.
void check_rollback(const Context & target, int n_max);

} // namespace spac
