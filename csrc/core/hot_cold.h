// Compares a plan's wishes with a verification's demand. python/spac/stats/prediction.py says what they are counted
// for and has it in numpy; that is the reference.
#pragma once

#include <cstdint>

namespace spac {

struct HotCold {
    int64_t n_pairs  = 0; // activations
    int64_t n_used   = 0; // experts with one
    int64_t n_wanted = 0; // experts that the plan wants
    int64_t n_both   = 0;
    int64_t n_exist  = 0;
};

// demand, priority, exists: [n_layer, n_expert]; threshold: [n_layer].
HotCold hot_cold(int n_layer, int n_expert, const int32_t * demand, const int32_t * priority, const int32_t * threshold,
                 const bool * exists);

} // namespace spac
