#include "backend/experts/file_copies.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace spac {

FileCopies::~FileCopies() {
    for (const Copy & copy : copies_) {
        close(copy.fd);
    }
}

void FileCopies::add(const Extent & memory, int fd) {
    const int kept = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (kept < 0) {
        return; // the copy stays as it is
    }
    const std::lock_guard lock(mutex_);
    copies_.push_back({memory, kept});
}

bool FileCopies::empty() const {
    const std::lock_guard lock(mutex_);
    return copies_.empty();
}

size_t FileCopies::map_again(const Extent & range) const {
    const auto            page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    const std::lock_guard lock(mutex_);
    size_t                bytes = 0;
    for (const Copy & copy : copies_) {
        const uintptr_t begin = (std::max(range.begin, copy.memory.begin) + page - 1) / page * page;
        const uintptr_t end   = std::min(range.end, copy.memory.end) / page * page;
        if (begin >= end) {
            continue;
        }
        const auto offset = static_cast<off_t>(begin - copy.memory.begin);
        if (mmap(reinterpret_cast<void *>(begin), end - begin, PROT_READ, MAP_SHARED | MAP_FIXED, copy.fd, offset) !=
            MAP_FAILED) {
            bytes += end - begin;
        }
    }
    return bytes;
}

std::vector<Extent> FileCopies::gaps(std::vector<Extent> weights) const {
    std::sort(weights.begin(), weights.end(), [](const Extent & a, const Extent & b) { return a.begin < b.begin; });
    const std::lock_guard lock(mutex_);
    std::vector<Extent>   found;
    for (const Copy & copy : copies_) {
        uintptr_t end = 0; // of the weights so far in this copy; 0: there were none
        for (const Extent & weight : weights) {
            if (weight.begin < copy.memory.begin || weight.end > copy.memory.end) {
                continue;
            }
            if (end != 0 && weight.begin > end) {
                found.push_back({end, weight.begin});
            }
            end = std::max(end, weight.end);
        }
    }
    return found;
}

} // namespace spac
