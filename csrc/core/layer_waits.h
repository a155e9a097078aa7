// What a step's waits, layer by layer, tell of the device's time and of the hand-off.
// python/spac/costs/{device_time,hand_off_time}.py say how and have it in numpy; that is the reference, and results
// are equal to the bit.
#pragma once

#include <cstdint>
#include <vector>

namespace spac {

// Where the state lies; it belongs to whoever made it.
struct LayerWaitsState {
    int n_layer, n_factor;

    double *  loss; // [n_factor]
    int32_t * at;   // [1] the factor that is believed

    const double * factors; // [n_factor] of the times of the start
    const double * doubt;   // [n_factor] that a factor has to overcome
    const double * each;    // [n_layer] seconds of an expert, by a factor of 1
};

// Of every layer: [n_layer].
struct LayerWaitsStep {
    std::vector<double> distinct;   // experts on the device
    std::vector<double> wait, host; // seconds: of the CPU's wait, 0 where it was not needed, and of its experts
    double              total_s;    // of the step without its draft
    double              dense_s;    // of this, what would be left without experts
    double              usual_s;    // of a wait
};

struct LayerWaitsTold {
    bool   waited    = false; // else nothing of the rest is told
    double usual_s   = 0;     // of a wait, in this step
    double dense_s   = 0;     // of the step, without experts
    bool   has_whole = false; // layers that were not waited for, between others
    double spared_s  = 0;     // by each of these
    double inside_s  = 0;     // what the device computed in each, by a factor of 1
};

struct LayerWaitsOptions {
    double kept; // of what is known, after a step
    double most; // of a residual, in usual waits
};

// Moves the state on.
LayerWaitsTold observe_waits(const LayerWaitsState & state, const LayerWaitsOptions & options,
                             const LayerWaitsStep & step);

} // namespace spac
