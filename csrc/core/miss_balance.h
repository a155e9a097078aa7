// Corrects the costs of a division (miss_division.h) by the times that both sides took in divisions before.
//
// Each side has one factor, the measured time divided by the expected one. Where both sides end at the same time, the
// factors are those of that very division, so the division approaches this point whatever the costs were.
#pragma once

#include "core/miss_division.h"

#include <cstdint>

namespace spac {

class MissBalance {
  public:
    MissCosts corrected(const MissCosts & costs) const;
    // Notes the time of a side, which divided_ns() expected to take `expected_ns` by the corrected costs.
    void note_cpu(double expected_ns, int64_t ns);
    // `seen` is false if the device had ended before the host looked, after `ns`. Then it took no longer than this, and
    // is believed to be a little faster, so that it gets more work until its end is seen.
    void note_device(double expected_ns, int64_t ns, bool seen);

  private:
    double cpu_ = 1, device_ = 1;
};

} // namespace spac
