#include "backend/device/abort_guard.h"

#include "core/error.h"
#include "ggml.h"

#include <cstdio>

namespace spac {
namespace {

thread_local int guards = 0;

void on_abort(const char * message) {
    if (guards > 0) {
        throw DeviceError(message);
    }
    fprintf(stderr, "%s\n", message); // ggml ends the process when this returns
}

} // namespace

AbortGuard::AbortGuard() {
    ggml_set_abort_callback(on_abort); // never removed: an abort of a thread without a guard ends the process as before
    ++guards;
}

AbortGuard::~AbortGuard() { --guards; }

bool AbortGuard::here() { return guards > 0; }

} // namespace spac
