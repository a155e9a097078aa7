// Stops a decode of llama.cpp's loop when the loop ends.
#pragma once

#include "core/not_copied.h"
#include "llama.h"

#include <atomic>

namespace spac {

// The abort callback of a context. llama.cpp calls it between the nodes of a CPU graph, maybe on other threads.
class Interrupt : NotCopied {
  public:
    void attach(llama_context * ctx) { llama_set_abort_callback(ctx, &Interrupt::stops, this); }
    void detach(llama_context * ctx) { llama_set_abort_callback(ctx, nullptr, nullptr); }
    void cancel() noexcept { cancelled_.store(true); }

    // While it lives, the decode may be stopped.
    class Call : NotCopied {
      public:
        explicit Call(Interrupt & interrupt) : interrupt_(interrupt) { interrupt_.running_.store(true); }
        ~Call() { interrupt_.running_.store(false); }

      private:
        Interrupt & interrupt_;
    };

  private:
    static bool stops(void * self) noexcept {
        const auto * interrupt = static_cast<const Interrupt *>(self);
        return interrupt->running_.load() && interrupt->cancelled_.load();
    }

    std::atomic<bool> running_{false}, cancelled_{false};
};

} // namespace spac
