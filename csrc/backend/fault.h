// Faults that can be switched on: the negative controls of the tests that compare results; see set_fault in device.h.
#pragma once

namespace spac {

enum class Fault { none, swap_slots, drop_join, compact, early_turn, no_kernel };
Fault fault();

} // namespace spac
