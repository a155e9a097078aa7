// Failed assertions of llama.cpp as exceptions, so that a request cannot end the process by one.
#pragma once

#include "core/not_copied.h"

namespace spac {

// While it lives, what llama.cpp would abort for in this thread throws InternalError with its message. Threads that
// compute graphs have none: an assertion that fails there ends the process.
class AbortScope : NotCopied {
  public:
    AbortScope();
    ~AbortScope();

    // Lets assertions end the process again, for a call after which the state of a context would be unknown.
    class Pause : NotCopied {
      public:
        Pause();
        ~Pause();

      private:
        int before_;
    };
};

} // namespace spac
