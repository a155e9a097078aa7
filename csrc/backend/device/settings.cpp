#include "backend/device/settings.h"

#include <atomic>
#include <mutex>

namespace spac {
namespace {

std::atomic<int> launch_ahead_now{-1}; // -1: no choice
std::atomic<int> trust_masks_now{-1};
std::atomic<int> in_place_now{-1};
std::atomic<int> upload_threads_now{0};
std::mutex       pinning_mutex;
Pinning          pinning_now;

// The driver compiles some kernels at their first launch, which takes seconds without being a failure.
constexpr double    default_timeout = 20;
std::atomic<double> timeout_now{default_timeout};

int                 number(std::optional<bool> on) { return on ? int{*on} : -1; }
std::optional<bool> choice(int now) { return now < 0 ? std::nullopt : std::optional<bool>(now != 0); }

} // namespace

void set_launch_ahead(std::optional<bool> on) { launch_ahead_now = number(on); }
void set_trust_device_masks(std::optional<bool> on) { trust_masks_now = number(on); }

void   set_gate_timeout(std::optional<double> seconds) { timeout_now = seconds.value_or(default_timeout); }
double gate_timeout() { return timeout_now; }

void set_hand_over_in_place(std::optional<bool> on) { in_place_now = number(on); }

void set_upload_threads(int n) { upload_threads_now = n; }
int  upload_threads() { return upload_threads_now; }

std::optional<bool> hand_over_in_place() { return choice(in_place_now); }
std::optional<bool> launch_ahead() { return choice(launch_ahead_now); }
std::optional<bool> trust_device_masks() { return choice(trust_masks_now); }

void set_pinning(const Pinning & how) {
    const std::lock_guard lock(pinning_mutex);
    pinning_now = how;
}

Pinning pinning() {
    const std::lock_guard lock(pinning_mutex);
    return pinning_now;
}

} // namespace spac
