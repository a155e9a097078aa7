// One step of the scheduler that predicts the next step's experts by online logistic regression. It learns, predicts
// and plans for all experts of a model. The reference is python/spac/scheduler/logistic.py, in numpy, with the
// equations. Python calls this one because of the caches: after a verification, they hold nothing of the interpreter.
// Then the reference's thirty small numpy operations take several times as long as in a loop of their own.
#pragma once

#include "core/transitions.h"

#include <cstdint>

namespace spac {

// count, recent, near, far, position, rejected; popular, and the lift of each source of the transitions
constexpr int n_logistic_features = 6 + 1 + n_most_sources;

// Pointers to the state, which belongs to the caller. The arrays are in C order. L: layers, N: experts, P: pools.
struct LogisticState {
    int n_layer, n_expert, n_pool;

    double * weights;     // [12] of the features, then the bias
    double * squares;     // [12] of gradients, decayed
    double * features;    // [11, L, N] for the last step
    double * probability; // [L, N] for the next step; 0 in the padding, and everywhere before the first step

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P] slots that are left for layers that are not whole
    const uint8_t * whole;      // [L] layers of which all experts are wanted

    Transitions transitions;
};

struct LogisticOptions {
    double rate;              // learning rate
    double recent, near, far; // part of these features that is left after a token
    double squares_kept;      // part of the squares that is left after a step
    double least;             // least value of a square; a feature below it becomes 0
    double most;              // largest absolute value of a weight
};

struct LogisticStep {
    const int32_t * demand;  // [L, N]
    const int32_t * slot_of; // [L, N]
    const int32_t * routes;  // [L, n_token, n_used], padded with -1; null if unknown
    int             n_token, n_used;
    int             n_verified, n_rejected; // tokens; the last n_rejected of them were rejected
    double          margin;                 // least gain in probability that is worth a copy
    double          hold;                   // weight of `near` beside the probability
};

// Updates the state, and writes the plan: priority[L, N] in units of 2^-20, and threshold[L]. Whole layers have
// priorities above all others. Throws InputError for a route to an expert that does not exist, before it changes
// anything.
void logistic_step(const LogisticState & state, const LogisticOptions & options, const LogisticStep & step,
                   int32_t * priority, int32_t * threshold);

} // namespace spac
