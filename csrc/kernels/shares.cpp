#include "kernels/shares.h"

namespace spac::kernels {
namespace {
std::atomic<bool> cores_are_uneven{false};
}

void set_uneven_cores(bool on) { cores_are_uneven = on; }

const Sharing & sharing() {
    static const Sharing chosen = cores_are_uneven ? for_uneven_cores : for_even_cores;
    return chosen;
}

} // namespace spac::kernels
