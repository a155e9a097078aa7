// One step of MoE-SpAc in its default form, for all experts of a model: Algorithm 1 (form "level"), the balancer
// ("best first"), and the plan. The reference is in python/spac/scheduler, in numpy, with explanations and all other
// forms. Both make the same plans bit for bit, so this file is compiled without contracting a * b + c. Python calls
// this one because of the caches: after a verification, they hold nothing of the interpreter. Then the reference's
// forty small numpy operations take several times as long as in a loop of their own.
#pragma once

#include <cstdint>
#include <vector>

namespace spac {

// Pointers to the state, which belongs to the caller. The arrays are in C order. L: layers, N: experts, K: levels,
// P: pools.
struct MoeSpacState {
    int n_layer, n_expert, n_level, n_pool;

    int32_t * utility; // [L, N]
    double *  up;      // [L, N] boundaries for a rise
    double *  down;    // [L, N] boundaries for a fall
    double *  last;    // [L, N] share of the latest tokens that used the expert
    double *  count;   // [L, N] decayed, for the order within a level; unchanged if a step has an order
    int32_t * used;    // [L, N] number of the step of the last use
    double *  hot;     // [2, L, K] share with s >= 1..K, of the pairs and of the distinct experts
    double *  total;   // [2, L] pairs and distinct experts of a step

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P] slots that are left for layers that are not whole
    const uint8_t * whole;      // [L] layers of which all experts are wanted
};

struct MoeSpacOptions {
    double per_step;   // gamma + 1: the tokens of a whole step
    double forgetting; // rate at which boundaries forget
    bool   adapt;      // true if boundaries move
};

// Unit times of every layer in seconds, [L] each.
struct MoeSpacTimes {
    std::vector<double> cpu_pair, cpu_expert, cpu_layer, gpu_expert, upload;
    double              draft_token = 0;
};

struct MoeSpacStep {
    const int32_t * demand;  // [L, N]
    const int32_t * slot_of; // [L, N]
    int             n_verified, n_drafted;
    int32_t         number; // the step's number
    double          share;  // the step's share in the averages
    double          kept;   // part of a count that is left after the step
    const int32_t * order;  // [L, N] order within a level, 0 to 2^20 - 1; null: the decayed counts give it
};

// Updates the state, and writes the plan: priority[L, N] and threshold[L], both in units of 2^20 per level, and the
// thresholds themselves, tau[L]. Whole layers have priorities above all levels. Their experts need no slots of the
// others.
void moe_spac_step(const MoeSpacState & state, const MoeSpacOptions & options, const MoeSpacTimes & times,
                   const MoeSpacStep & step, int32_t * priority, int32_t * threshold, int32_t * tau);

} // namespace spac
