// Measures how fast this machine reads a file's mapping, and a copy of it on huge pages.
#pragma once

#include <cstddef>

namespace spac {

struct ReadRates {
    double mapped_gb_s; // from the mapping
    double huge_gb_s;   // from the copy
    double gain;        // how many times as fast the copy is read: the median of several turns
    double copy_gb_s;   // at which the copy was made
    size_t bytes;       // that were read each time
    size_t huge_bytes;  // of the copy's bytes, those that were on huge pages
};

// Reads samples of a file, of about `bytes` together, from its mapping and from a copy in turns, every thread its own
// part. The samples are to be larger than the processor's caches; those that are not in memory are read from the file
// first. Throws InputError where the file cannot be mapped, MemoryError where there is no memory for the copy.
ReadRates measure_read_rates(int fd, size_t bytes, int n_threads);

} // namespace spac
