// One step of the scheduler that predicts the next step's experts by online logistic regression: learning, prediction
// and plan for all experts of a model. python/spac/scheduler/logistic.py has it in numpy, with its equations; that is
// the reference. Python calls this one because after every verification, when nothing of the interpreter is in the
// caches any more, its thirty small numpy operations take several times as long as in a loop of their own.
#pragma once

#include <cstdint>

namespace spac {

constexpr int n_logistic_features = 6; // count, recent, near, far, position, rejected

// Where the state lies; it belongs to whoever made it. L layers, N experts, P pools; C order.
struct LogisticState {
    int n_layer, n_expert, n_pool;

    double * weights;     // [7] of the features, then the bias
    double * squares;     // [7] of gradients, decayed
    double * features;    // [6, L, N] of the last step
    double * probability; // [L, N] for the next step; 0 in the padding, and everywhere before the first step

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P] but for whole layers
    const uint8_t * whole;      // [L] layers of which all experts are wanted
};

struct LogisticOptions {
    double rate;              // of learning
    double margin;            // the gain in probability that is worth a copy
    double recent, near, far; // what a token leaves of these features
    double squares_kept;      // after each step
    double least;             // of those squares; a feature below it is 0
    double most;              // of a weight, either way
};

struct LogisticStep {
    const int32_t * demand;  // [L, N]
    const int32_t * slot_of; // [L, N]
    const int32_t * routes;  // [L, n_token, n_used], -1 padded; null where they are not known
    int             n_token, n_used;
    int             n_verified, n_rejected; // tokens, and how many of the last
};

// Moves the state on, and writes the plan: priority[L, N] in units of 2^-20, and threshold[L]; whole layers stand above
// all others. Throws InputError for a route to an expert that there is not, before anything has changed.
void logistic_step(const LogisticState & state, const LogisticOptions & options, const LogisticStep & step,
                   int32_t * priority, int32_t * threshold);

} // namespace spac
