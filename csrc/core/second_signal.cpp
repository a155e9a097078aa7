#include "core/second_signal.h"

#include "core/error.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace spac {

namespace {

// The handler may run on any thread, between any two instructions, so it reads lock-free words only.
std::array<std::atomic<void (*)(int)>, 65> handlers{};
std::atomic<int64_t>                       first_ns{0}, after_ns{0};

int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return int64_t(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void on_signal(int number) {
    const int     error = errno;
    const int64_t now   = now_ns();
    int64_t       first = 0;
    if (!first_ns.compare_exchange_strong(first, now) && now - first >= after_ns.load()) {
        std::signal(number, SIG_DFL);
        raise(number); // It is delivered when this handler returns.
    } else {
        handlers[static_cast<size_t>(number)].load()(number);
    }
    errno = error;
}

} // namespace

void end_at_second_signal(int number, double after_s, bool has_come) {
    struct sigaction action {};
    if (number < 1 || number >= static_cast<int>(handlers.size()) || sigaction(number, nullptr, &action) != 0) {
        throw InputError("there is no signal " + std::to_string(number));
    }
    first_ns.store(has_come ? now_ns() : 0);
    after_ns.store(static_cast<int64_t>(after_s * 1e9));
    const bool is_plain = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler != SIG_DFL &&
                          action.sa_handler != SIG_IGN && action.sa_handler != on_signal;
    if (is_plain) { // by default, the first signal ends the process
        handlers[static_cast<size_t>(number)].store(action.sa_handler);
        action.sa_handler = on_signal;
        sigaction(number, &action, nullptr);
    }
}

} // namespace spac
