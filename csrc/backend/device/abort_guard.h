// ggml ends the process where it finds a file or parameters that it cannot use (GGML_ABORT, GGML_ASSERT). While a guard
// lives on a thread, such an end of this thread becomes an exception, which llama.cpp's own handlers around loading a
// model and making a context turn into a failure that its caller sees. Only for those calls: ggml's state is not made
// to be unwound while it computes.
#pragma once

namespace spac {

class AbortGuard {
  public:
    AbortGuard();
    ~AbortGuard();
    AbortGuard(const AbortGuard &)             = delete;
    AbortGuard & operator=(const AbortGuard &) = delete;

    // Whether one lives on this thread.
    static bool here();
};

} // namespace spac
