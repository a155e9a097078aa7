// Messages of llama.cpp's common library, which logs to stderr through a thread of its own. set_common_verbosity() in
// session.h chooses them.
#pragma once

namespace spac {

// Silences them once, unless somebody has chosen otherwise. Errors reach the caller as exceptions anyway.
void silence_common_at_first();

} // namespace spac
