// Messages of llama.cpp's common library, which logs through a thread of its own, to stderr. See set_common_verbosity
// in session.h.
#pragma once

namespace spac {

// Silences them, once, unless somebody has chosen otherwise: errors reach the caller as exceptions anyway.
void silence_common_at_first();

} // namespace spac
