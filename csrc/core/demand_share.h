// Which share of the latest tokens wants an expert, and how many with which share are not resident.
// python/spac/governor/times.py (`Misses`) says what for and has it in numpy; that is the reference, and results are
// equal to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace spac {

// Moves `share` [n] on by the demand [n] of `n_tokens`, of which `kept` is what is left of it, ends that demand, and
// counts the absent into bins [n_bins] by the root of their share.
void renew_shares(double * share, int32_t * demand, const bool * resident, size_t n, double n_tokens, double kept,
                  double * bins, int n_bins);

} // namespace spac
