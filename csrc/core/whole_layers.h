// Which layers are to have all their experts resident, because that spares them the hand-off to the CPU: one look at a
// step. python/spac/scheduler/whole_layers.py has it in numpy, with what it means; that is the reference, and the
// results are equal bit for bit (so this file is compiled without contracting a * b + c).
#pragma once

#include <cstdint>
#include <vector>

namespace spac {

// Where the state lies; it belongs to whoever made it. L layers, N experts, P pools; C order.
struct WholeState {
    int n_layer, n_expert, n_pool;

    uint8_t * whole;      // [L]
    int32_t * slots_left; // [P] that whole layers leave
    double *  gain;       // [L] averages, in uses of experts
    double *  seen;       // [P, 3, 2] of the least likely that are kept, of others, of their best: predicted, and used
    int32_t * looks;      // [P, 2] ever, and since the last change

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P]
};

struct WholeOptions {
    int    looks;   // that are averaged before anything changes
    double share;   // of a look in the averages
    double horizon; // steps in which copies are to be repaid
    double need;    // of the hand-off, that a layer must gain to join
    int    trial;   // layers that there must be slots for, to make one whole as a trial
    int    at_once; // one of so many layers changes sides at once, at most
};

// In seconds, [P] each.
struct WholeTimes {
    std::vector<double> cpu_expert, cpu_pair, device_expert, upload;
    double              hand_off = 0; // below 0: not known
};

struct WholeStep {
    const double *  chance;   // [L, N] that was predicted for it
    const int32_t * priority; // [L, N] of the plan that it began with
    const int32_t * demand;   // [L, N]
    const int32_t * slot_of;  // [L, N]
};

// Moves the state on; returns whether layers have changed sides.
bool whole_layers_look(const WholeState & state, const WholeOptions & options, const WholeTimes & times,
                       const WholeStep & step);

} // namespace spac
