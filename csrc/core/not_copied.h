// A base of classes whose objects are neither copied nor moved.
#pragma once

namespace spac {

class NotCopied {
  public:
    NotCopied(const NotCopied &)             = delete;
    NotCopied & operator=(const NotCopied &) = delete;

  protected:
    NotCopied()  = default;
    ~NotCopied() = default;
};

} // namespace spac
