// Checks layers whose experts are too large for one tensor's 32-bit index. Returns the number of failed checks. It
// needs no memory for the experts.
#pragma once

int check_slot_limits();
