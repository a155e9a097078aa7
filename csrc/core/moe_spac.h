// One step of MoE-SpAc in its default form, for all experts of a model: Algorithm 1 (form "level"), the balancer
// ("best first"), and the plan. python/spac/scheduler has it in numpy, with what it means and every other form; that is
// the reference, and the plans are equal bit for bit (so this file is compiled without contracting a * b + c). Python
// calls this one because after every verification, when nothing of the interpreter is in the caches any more, forty
// small numpy operations take several times as long as in a loop of their own.
#pragma once

#include <cstdint>
#include <vector>

namespace spac {

// Where the state lies; it belongs to whoever made it. L layers, N experts, K levels, P pools; C order.
struct MoeSpacState {
    int n_layer, n_expert, n_level, n_pool;

    int32_t * utility; // [L, N]
    double *  up;      // [L, N] boundaries
    double *  down;    // [L, N]
    double *  last;    // [L, N] the share of the latest tokens that wanted an expert
    double *  count;   // [L, N] decayed, for the order within a level; untouched where a step brings one
    int32_t * used;    // [L, N] the step of the last use
    double *  hot;     // [2, L, K] of pairs and of distinct experts, the share with s >= 1..K
    double *  total;   // [2, L] pairs and distinct experts of a step

    const uint8_t * exists;     // [L, N]
    const int32_t * pool;       // [L]
    const int32_t * pool_slots; // [P] but for whole layers
    const uint8_t * whole;      // [L] layers of which all experts are wanted
};

struct MoeSpacOptions {
    double per_step;   // gamma + 1: the tokens that a whole step stands for
    double forgetting; // of boundaries
    bool   adapt;      // whether boundaries move
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
    int32_t         number; // of the step
    double          share;  // of this step in the averages
    double          kept;   // of a count
    const int32_t * order;  // [L, N] within a level, 0 to 2^20 - 1; null: by the decayed counts
};

// Moves the state on, and writes the plan: priority[L, N] and threshold[L], both in units of 2^20 per level, and the
// thresholds themselves, tau[L]. Whole layers stand above all levels, and their experts need no slots of the others.
void moe_spac_step(const MoeSpacState & state, const MoeSpacOptions & options, const MoeSpacTimes & times,
                   const MoeSpacStep & step, int32_t * priority, int32_t * threshold, int32_t * tau);

} // namespace spac
