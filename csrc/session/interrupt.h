// Stops a running call of the session: on cancel(), from anywhere, or on an exception of the interrupt check.
#pragma once

#include "core/not_copied.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

struct llama_context;

namespace spac {

// The abort callback of the contexts that it is attached to. llama.cpp calls it between the nodes of a CPU graph, maybe
// on other threads than the session's. The interrupt check is called on the session's thread alone.
class Interrupt : NotCopied {
  public:
    Interrupt() = default;

    void attach(llama_context * ctx);
    void detach(llama_context * ctx);

    void set_check(std::function<void()> check) { check_ = std::move(check); }
    void cancel() noexcept { cancelled_.store(true); }
    void clear() noexcept;

    // One call of the session, on the thread that makes it. Outside of calls the check is not made and cancel() stops
    // nothing, because the session must not stop somebody else's decode on the same context. Throws InputError while
    // another call runs.
    class Call : NotCopied {
      public:
        explicit Call(Interrupt & interrupt);
        ~Call();

      private:
        Interrupt & interrupt_;
    };
    // If the call was stopped, throws what stopped it (the check's exception, or Cancelled), and takes the request
    // back.
    void raise_if_stopped();

  private:
    static bool abort_callback(void * self) noexcept;
    void        poll() noexcept;

    std::atomic<bool>                     busy_{false}; // true while a call runs
    std::atomic<bool>                     cancelled_{false};
    std::function<void()>                 check_;
    std::exception_ptr                    error_; // written and read on the session's thread
    std::atomic<bool>                     has_error_{false};
    std::atomic<std::thread::id>          runner_{};
    std::chrono::steady_clock::time_point next_check_{};
};

} // namespace spac
