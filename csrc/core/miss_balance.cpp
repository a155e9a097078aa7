#include "core/miss_balance.h"

#include <algorithm>

namespace spac {
namespace {

// The share of a new measurement, the largest change by one, and the change by a side that ended unseen.
constexpr double share = 0.25, most_change = 4, sinking = 0.97;

void approach(double & factor, double ratio) {
    factor *= 1 + share * (std::clamp(ratio, 1 / most_change, most_change) - 1);
}

} // namespace

MissCosts MissBalance::corrected(const MissCosts & costs) const {
    MissCosts now = costs;
    now.cpu_layer *= cpu_;
    now.cpu_expert *= cpu_;
    now.cpu_pair *= cpu_;
    now.link_layer *= device_;
    now.link_expert *= device_;
    now.device_expert *= device_;
    return now;
}

void MissBalance::note_cpu(double expected_ns, int64_t ns) {
    if (expected_ns > 0) {
        approach(cpu_, static_cast<double>(ns) / expected_ns);
    }
}

void MissBalance::note_device(double expected_ns, int64_t ns, bool seen) {
    if (expected_ns > 0 && seen) {
        approach(device_, static_cast<double>(ns) / expected_ns);
    } else if (expected_ns > 0) {
        device_ *=
            std::min(sinking, 1 + share * (std::max(static_cast<double>(ns) / expected_ns, 1 / most_change) - 1));
    }
}

} // namespace spac
