// The pager by itself: several threads ask, read and let go of experts in a mapping of a file.
#pragma once

// Returns the number of faults, each of which it tells on stderr.
int check_pager();
