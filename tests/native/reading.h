// Reading ahead by itself: several threads ask for experts in a mapping of a file, and read them.
#pragma once

// Returns the number of faults, each of which it tells on stderr.
int check_read_ahead();
