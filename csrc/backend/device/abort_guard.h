// A guard that makes loading fail where ggml would end the process.
//
// ggml ends the process when it meets a file or parameters that it cannot use (GGML_ABORT, GGML_ASSERT). While a guard
// lives on a thread, an abort on this thread becomes an exception. llama.cpp's own handlers around loading a model and
// making a context turn it into a failure that the caller sees. Use a guard for those calls only: ggml's state is not
// made to be unwound while it computes.
#pragma once

namespace spac {

class AbortGuard {
  public:
    AbortGuard();
    ~AbortGuard();
    AbortGuard(const AbortGuard &)             = delete;
    AbortGuard & operator=(const AbortGuard &) = delete;

    // Returns true if a guard lives on this thread.
    static bool here();
};

} // namespace spac
