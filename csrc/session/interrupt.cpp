#include "session/interrupt.h"

#include "llama.h"
#include "session/session.h"

#include <utility>

namespace spac {

// The check takes the host language's lock. This is often enough for a person's Ctrl-C, and too seldom to cost
// anything.
static constexpr auto check_interval = std::chrono::milliseconds(50);

void Interrupt::attach(llama_context * ctx) { llama_set_abort_callback(ctx, &Interrupt::abort_callback, this); }

void Interrupt::detach(llama_context * ctx) { llama_set_abort_callback(ctx, nullptr, nullptr); }

void Interrupt::clear() noexcept {
    cancelled_.store(false);
    has_error_.store(false);
    error_ = nullptr;
}

Interrupt::Call::Call(Interrupt & interrupt) : interrupt_(interrupt) {
    if (interrupt_.busy_.exchange(true)) {
        throw InputError("the session is in use: one call at a time, and none but set_draft_length() and cancel() "
                         "from a callback");
    }
    interrupt_.runner_.store(std::this_thread::get_id());
    interrupt_.next_check_ = std::chrono::steady_clock::now() + check_interval;
}

Interrupt::Call::~Call() {
    interrupt_.runner_.store({});
    interrupt_.busy_.store(false);
}

void Interrupt::poll() noexcept {
    if (!check_ || runner_.load() != std::this_thread::get_id()) {
        return;
    }
    const auto now = std::chrono::steady_clock::now();
    if (has_error_.load() || now < next_check_) {
        return;
    }
    next_check_ = now + check_interval;
    try {
        check_();
    } catch (...) {
        error_ = std::current_exception();
        has_error_.store(true);
    }
}

bool Interrupt::abort_callback(void * self) noexcept {
    auto * interrupt = static_cast<Interrupt *>(self);
    interrupt->poll();
    return interrupt->busy_.load() && (interrupt->cancelled_.load() || interrupt->has_error_.load());
}

void Interrupt::raise_if_stopped() {
    poll();
    if (has_error_.exchange(false)) {
        // One Ctrl-C may both make the check throw and call cancel(). This is one request.
        cancelled_.store(false);
        std::rethrow_exception(std::exchange(error_, nullptr));
    }
    if (cancelled_.exchange(false)) {
        throw Cancelled("the session was cancelled");
    }
}

} // namespace spac
