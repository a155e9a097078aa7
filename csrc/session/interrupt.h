// A call of the session that runs, and stopping it: by cancel() from anywhere, or by an exception of the interrupt
// check.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <thread>

struct llama_context;

namespace spac {

// Hangs itself into contexts as their abort callback, which llama.cpp asks between the nodes of a CPU graph. The
// callback may come from other threads than the session's; the interrupt check is called on the session's thread alone.
class Interrupt {
  public:
    Interrupt()                              = default;
    Interrupt(const Interrupt &)             = delete;
    Interrupt & operator=(const Interrupt &) = delete;

    void attach(llama_context * ctx);
    void detach(llama_context * ctx);

    void set_check(std::function<void()> check) { check_ = std::move(check); }
    void cancel() noexcept { cancelled_.store(true); }
    void clear() noexcept;

    // One call of the session, on the thread that makes it. Outside of calls the check is not made: a decode of
    // somebody else's on the same context is not the session's to stop. Throws InputError while another call runs.
    class Call {
      public:
        explicit Call(Interrupt & interrupt);
        ~Call();
        Call(const Call &)             = delete;
        Call & operator=(const Call &) = delete;

      private:
        Interrupt & interrupt_;
    };
    // Throws what stopped the call (the check's exception, or Cancelled), and takes the request back.
    void raise_if_stopped();

  private:
    static bool abort_callback(void * self) noexcept;
    void        poll() noexcept;

    std::atomic<bool>                     busy_{false}; // a call runs
    std::atomic<bool>                     cancelled_{false};
    std::function<void()>                 check_;
    std::exception_ptr                    error_; // written and read on the session's thread
    std::atomic<bool>                     has_error_{false};
    std::atomic<std::thread::id>          runner_{};
    std::chrono::steady_clock::time_point next_check_{};
};

} // namespace spac
