// Typed errors, and checks that are always on. Errors cross threads as std::exception_ptr, and arrive in Python as the
// exceptions of spac.errors with the same names.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace spac {

// The root of all errors. The message says what is wrong and what to do about it.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// The caller passed something that cannot be used (a shape, a range, a name).
class InputError : public Error {
  public:
    using Error::Error;
};

// The device or the host has not enough memory for what was asked.
class MemoryError : public Error {
  public:
    using Error::Error;
};

// The device failed: a copy, a launch, an allocation that must not fail.
class DeviceError : public Error {
  public:
    using Error::Error;
};

// An invariant of our own does not hold. This is a defect of spac, and the message should be reported.
class InternalError : public Error {
  public:
    using Error::Error;
};

namespace detail {
[[noreturn]] inline void check_failed(const char * file, int line, const char * what, const std::string & values) {
    std::ostringstream message;
    message << "internal error at " << file << ":" << line << ": " << what;
    if (!values.empty()) {
        message << " (" << values << ")";
    }
    throw InternalError(message.str());
}

template <typename... Values> std::string join(const Values &... values) {
    std::ostringstream out;
    const char *       separator = "";
    ((out << separator << values, separator = ", "), ...);
    return out.str();
}
} // namespace detail

// SPAC_CHECK(condition, values...) checks in every build. The values go into the message.
#define SPAC_CHECK(condition, ...)                                                                                     \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            ::spac::detail::check_failed(__FILE__, __LINE__, #condition, ::spac::detail::join(__VA_ARGS__));           \
        }                                                                                                              \
    } while (0)

} // namespace spac
