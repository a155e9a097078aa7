// The process that an object was made in. Threads do not survive fork(): in a child, whatever waits for one would wait
// for ever. So a child is refused what needs threads, and does not free it either.
#pragma once

#include "core/error.h"

#include <string>

#include <unistd.h>

namespace spac {

class HomeProcess {
  public:
    bool is_here() const { return getpid() == pid_; }
    // Throws InputError in a child of the process; `what` is the object's name.
    void check(const char * what) const {
        if (!is_here()) {
            throw InputError(std::string(what) +
                             " was made in another process, before a fork: load the model anew in this one");
        }
    }

  private:
    pid_t pid_ = getpid();
};

} // namespace spac
