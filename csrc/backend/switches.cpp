// What is switched for the whole process (device.h): launching ahead, trust in a device's masks, faults for tests.

#include "backend/device.h"
#include "backend/fault.h"
#include "core/error.h"

#include <atomic>

namespace spac {
namespace {

std::atomic<int>   launch_ahead_now{-1}; // no choice
std::atomic<bool>  trust_masks_now{false};
std::atomic<Fault> fault_now{Fault::none};

} // namespace

void set_launch_ahead(std::optional<bool> on) { launch_ahead_now = on ? int{*on} : -1; }

std::optional<bool> launch_ahead() {
    const int now = launch_ahead_now;
    return now < 0 ? std::nullopt : std::optional<bool>(now != 0);
}

void set_trust_device_masks(bool on) { trust_masks_now = on; }
bool trust_device_masks() { return trust_masks_now; }

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
    } else {
        throw InputError("unknown fault '" + name +
                         "': swap-slots, drop-join, early-turn, early-release, no-kernel, compact or nothing");
    }
}

Fault fault() { return fault_now; }

} // namespace spac
