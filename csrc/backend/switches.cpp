// What is switched for the whole process (device.h): launching ahead and its deadline, trust in a device's masks,
// pinning, faults for tests.

#include "backend/device.h"
#include "backend/fault.h"
#include "core/error.h"

#include <atomic>
#include <mutex>

namespace spac {
namespace {

std::atomic<int>   launch_ahead_now{-1}; // no choice
std::atomic<int>   trust_masks_now{-1};
std::atomic<int>   in_place_now{-1};
std::atomic<Fault> fault_now{Fault::none};
std::mutex         pinning_mutex;
Pinning            pinning_now;

// Some kernels are compiled by the driver when they are first launched: that takes seconds, and is no failure.
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

void set_fault(const std::string & name) {
    if (name.empty()) {
        fault_now = Fault::none;
    } else if (name == "swap-slots") {
        fault_now = Fault::swap_slots;
    } else if (name == "drop-join") {
        fault_now = Fault::drop_join;
    } else if (name == "early-turn") {
        fault_now = Fault::early_turn;
    } else if (name == "early-release") {
        fault_now = Fault::early_release;
    } else if (name == "no-kernel") {
        fault_now = Fault::no_kernel;
    } else if (name == "compact") {
        fault_now = Fault::compact;
    } else if (name == "stuck-gate") {
        fault_now = Fault::stuck_gate;
    } else if (name == "stuck-call") {
        fault_now = Fault::stuck_call;
    } else if (name == "dead-device") {
        fault_now = Fault::dead_device;
    } else {
        throw InputError("unknown fault '" + name +
                         "': swap-slots, drop-join, early-turn, early-release, no-kernel, stuck-gate, stuck-call, "
                         "dead-device, compact or nothing");
    }
}

Fault fault() { return fault_now; }

} // namespace spac
