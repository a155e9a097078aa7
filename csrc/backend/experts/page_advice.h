// Advice to the system about pages of a mapping.
#pragma once

#include "core/pinned_ranges.h"

#include <sys/mman.h>
#include <unistd.h>

namespace spac {

// Advises the system about the whole pages in a range. Systems that do not know the advice ignore it.
inline void advise(const Extent & range, int advice) {
    const auto page  = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = (range.begin + page - 1) / page * page, end = range.end / page * page;
    if (begin < end) {
        static_cast<void>(madvise(reinterpret_cast<void *>(begin), end - begin, advice));
    }
}

} // namespace spac
