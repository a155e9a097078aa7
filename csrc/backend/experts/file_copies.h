// Copies of a model's files that stand in place of their mappings (LoadScope), and how parts of them go back to the
// file.
#pragma once

#include "core/pinned_ranges.h"

#include <cstddef>
#include <mutex>
#include <vector>

namespace spac {

// May be used from any thread. The memory belongs to llama.cpp, which unmaps it with the model.
class FileCopies {
  public:
    FileCopies() = default;
    ~FileCopies();
    FileCopies(const FileCopies &)             = delete;
    FileCopies & operator=(const FileCopies &) = delete;

    // Notes that `memory` is a copy of the file's beginning. Keeps the file open.
    void add(const Extent & memory, int fd);
    bool empty() const;
    // Maps the file over the whole pages of `range` that lie in a copy: what they hold stays the same, the memory is
    // free, and who reads them has the system read the file. `range` must be mapped. Returns the bytes of these pages.
    size_t map_again(const Extent & range) const;
    // Returns the parts of the copies between the first and the last of `weights` that lie in none of them.
    std::vector<Extent> gaps(std::vector<Extent> weights) const;

  private:
    struct Copy {
        Extent memory;
        int    fd;
    };
    mutable std::mutex mutex_;
    std::vector<Copy>  copies_;
};

} // namespace spac
