#include "hooks/abort_scope.h"

#include "core/error.h"

#include <cstdarg>
#include <cstdio>
#include <utility>

namespace spac {

namespace {
thread_local int n_scopes = 0;
}

AbortScope::AbortScope() { ++n_scopes; }
AbortScope::~AbortScope() { --n_scopes; }
AbortScope::Pause::Pause() : before_(std::exchange(n_scopes, 0)) {}
AbortScope::Pause::~Pause() { n_scopes = before_; }

} // namespace spac

// The linker calls this in place of ggml's function (--wrap).
extern "C" {
[[noreturn]] void __real_ggml_abort(const char * file, int line, const char * format, ...);

[[noreturn]] void __wrap_ggml_abort(const char * file, int line, const char * format, ...) {
    char    text[1024];
    va_list values;
    va_start(values, format);
    std::vsnprintf(text, sizeof text, format, values);
    va_end(values);
    if (spac::n_scopes == 0) {
        __real_ggml_abort(file, line, "%s", text);
    }
    throw spac::InternalError(std::string("llama.cpp does not expect this (") + file + ":" + std::to_string(line) +
                              "): " + text);
}
}
