// Layers whose experts are too large for one tensor's 32-bit index; returns how many checks failed. It needs no memory
// for them.
#pragma once

int check_slot_limits();
