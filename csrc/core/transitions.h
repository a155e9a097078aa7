// Tables of which experts follow the late layers' experts of a token. The reference, with the equations, is
// python/spac/scheduler/transitions.py, in numpy.
#pragma once

#include <cstdint>

namespace spac {

// Pointers to the state, which belongs to the caller. The arrays are in C order. L: layers, N: experts, S: sources.
struct Transitions {
    int n_layer, n_expert, n_source;

    const int32_t * source;     // [S] layers
    float *         table;      // [S, N, L, N] shares of the steps after an expert of a source that used an expert
    float *         seen;       // [S, N] decayed counts of these steps
    uint8_t *       marked;     // [S, N] 1 for the last accepted token's experts
    double *        popularity; // [L, N] share of the steps that used an expert
    double *        steps;      // [1] decayed count of the steps that `popularity` averages; 0 before the first

    double kept;        // part of the counts that is left after a step
    double shrink;      // steps that the popularity counts for in a row of a table
    double first_steps; // steps that the first guess of the popularity counts for
    double floor;       // shares below it are as good as 0
    double least;       // a count below it becomes 0

    // Learns from the step after the token that is marked. demand: [L, N]; exists: [L, N].
    void learn(const int32_t * demand, const uint8_t * exists) const;

    // Marks the experts of one token. demand: [L, N]; routes: [L, n_token, n_used], padded with -1, or null; token:
    // the last accepted one's place in the routes. Without routes, the demand of a step of one token tells the same.
    void mark(const int32_t * demand, const int32_t * routes, int n_token, int n_used, int token) const;

    // Writes the features of the next step, [1 + 4, L, N]: log odds of the popularity, then the lift of each source.
    // Features of sources that there are not become 0.
    void write(double * features) const;
};

constexpr int n_most_sources = 4;

} // namespace spac
