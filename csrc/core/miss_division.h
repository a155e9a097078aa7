// The division of a layer's missing experts between the CPU and the link, by measured costs.
//
// The CPU computes the rows of some missing experts from host memory. The link brings the others to the device, which
// computes their rows. Each expert is on one side for all its rows.
#pragma once

#include <cstdint>
#include <vector>

namespace spac {

// The unit times of one pool's experts, in nanoseconds, measured while CPU and link both work.
struct MissCosts {
    double cpu_layer     = 0; // fixed time of the CPU in a layer in which it computes anything
    double cpu_expert    = 0; // time of reading one expert's weights
    double cpu_pair      = 0; // further time of each row
    double link_layer    = 0; // fixed time of a layer in which the link brings anything
    double link_expert   = 0; // time of one expert's copy
    double device_expert = 0; // time of computing one expert on the device
};

// Returns the time of a layer in which the CPU computes `n_cpu` missing experts with `pairs` rows altogether, and the
// link brings `n_link` missing experts beside `n_resident` experts that are used and resident. The device begins when
// the link has brought all: T = max(T_cpu, T_link + T_device). If the link brings none, T = max(T_cpu, T_device).
double divided_ns(const MissCosts & costs, int n_cpu, int64_t pairs, int n_link, int n_resident);

// Returns the number of experts that the link brings, at most `most`: those with the most rows. `rows` has the rows of
// every missing expert, the largest first. No other set takes less time by divided_ns(). Of equally fast divisions, it
// takes the one with the fewest copies.
int experts_over_link(const MissCosts & costs, const std::vector<int> & rows, int n_resident, int most);

} // namespace spac
