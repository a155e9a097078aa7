// The plan: what a scheduler wants of the slots. It is a value type of shape [L, N], where N is the largest number of
// experts of a layer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace spac {

struct Plan {
    int                  n_layer  = 0;
    int                  n_expert = 0;
    std::vector<int32_t> priority;  // [L * N], higher is wanted more
    std::vector<int32_t> threshold; // [L], an expert is wanted when its priority reaches its layer's threshold

    int32_t of(int il, int expert) const { return priority[static_cast<size_t>(il) * n_expert + expert]; }
    bool    wants(int il, int expert) const { return of(il, expert) >= threshold[il]; }
};

} // namespace spac
