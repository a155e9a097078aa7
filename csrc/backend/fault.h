// Faults that can be switched on: the negative controls of the tests that compare results; see set_fault in device.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace spac {

enum class Fault {
    none,
    swap_slots,
    drop_join,
    compact,
    early_turn,
    early_release,
    no_kernel,
    stuck_gate,
    stuck_call,
    dead_device
};
Fault fault();

// What swap_slots makes of a mask's slots.
inline std::vector<int32_t> two_swapped(std::vector<int32_t> slot_of) {
    const auto resident = [](int32_t slot) { return slot >= 0; };
    const auto first    = std::find_if(slot_of.begin(), slot_of.end(), resident);
    const auto second   = first == slot_of.end() ? first : std::find_if(first + 1, slot_of.end(), resident);
    if (second != slot_of.end()) {
        std::iter_swap(first, second);
    }
    return slot_of;
}

} // namespace spac
