// The parts of host memory that a device's driver has pinned. A copy from there needs no staging.
//
// A copy must not cross the border of a registration: CUDA refuses a source of which only a part is registered, and
// some versions refuse one that lies in two registrations. So copies are cut into slices at these borders.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace spac {

// May be used from any thread.
class PinnedRanges {
  public:
    // A part of a copy's source, which lies in one registration or in none.
    struct Slice {
        size_t offset;
        size_t bytes;
        bool   pinned;
    };

    // Adds one registration. Registrations do not overlap.
    void add(const void * begin, size_t bytes);
    void remove(const void * begin);
    // Returns the slices in order. Together they are the source.
    std::vector<Slice> slices(const void * data, size_t bytes) const;
    size_t             pinned_bytes(const void * data, size_t bytes) const;

  private:
    mutable std::mutex             mutex_;
    std::map<uintptr_t, uintptr_t> ranges_; // begin to end
};

// Addresses from `begin` up to `end`.
struct Extent {
    uintptr_t begin, end;
};

// Returns the slices in which a mapping is registered: whole pages inside it, of about `slice` bytes each and of `most`
// bytes together, from its beginning on. Every border lies in one of the `weights` (sorted, disjoint), which are copied
// in slices. Others may copy whatever else the mapping holds in one piece, so this must not lie across a border.
std::vector<Extent> pin_slices(Extent mapping, const std::vector<Extent> & weights, size_t page, size_t slice,
                               size_t most);

} // namespace spac
