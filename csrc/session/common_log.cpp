#include "session/common_log.h"

#include "log.h"
#include "session/session.h"

#include <mutex>

namespace spac {

namespace {

std::once_flag default_verbosity;

} // namespace

void silence_common_at_first() {
    std::call_once(default_verbosity, [] { common_log_set_verbosity_thold(-1); });
}

void set_common_verbosity(int level) {
    std::call_once(default_verbosity, [] {});
    common_log_set_verbosity_thold(level);
}

} // namespace spac
