// Measures how fast this machine reads a file's mapping, and a copy of it on huge pages.
#pragma once

#include <cstddef>

namespace spac {

struct ReadRates {
    double mapped_gb_s; // reading the mapping
    double huge_gb_s;   // reading the copy
    double gain;        // huge_gb_s / mapped_gb_s, as the median of several turns
    double copy_gb_s;   // making the copy
    size_t bytes;       // bytes that were read each time
    size_t huge_bytes;  // bytes of the copy that were on huge pages
};

// Reads samples of a file, of about `bytes` together, from its mapping and from a copy in turns, every thread its own
// part. The samples have to be larger than the processor's caches. Those that are not in memory are read from the file
// first. Throws InputError if the file cannot be mapped, MemoryError if there is no memory for the copy.
ReadRates measure_read_rates(int fd, size_t bytes, int n_threads);

} // namespace spac
