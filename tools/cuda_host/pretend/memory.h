// Device memory, and pinned and registered host memory: where it is now, and where it was.
//
// Device memory has two addresses, a fixed distance apart. The program knows one, where nobody may read or write. The
// pretend card works at the other one. So a program that reads device memory ends as it does with a card.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace pretend {

struct Range {
    enum class Where { device, pinned, registered };

    Where               where;
    char *              base;
    std::atomic<size_t> size;
    char *              backing;       // the address where the bytes can be touched
    int                 card      = 0; // of device memory
    bool                read_only = false;
    std::atomic<int>    in_use{0}; // operations under way that touch the range
    std::atomic<bool>   gone{false};

    bool   holds(const void * p, size_t n) const;
    char * at(const void * p) const { return backing + (static_cast<const char *>(p) - base); }
};
using RangePtr = std::shared_ptr<Range>;

// Returns the range that an address lies in; null if the driver does not know the memory.
RangePtr find(const void * p);
// Returns true if a range begins behind an address, within `bytes`.
bool runs_into_range(const void * p, size_t bytes);

// The addresses of all device memory, and the distance from there to the bytes.
struct Window {
    char *    base   = nullptr;
    size_t    size   = 0;
    ptrdiff_t offset = 0;
};
const Window & device_window();

// Allocates memory of a card, zeroed, or full of NaNs where POISON is set. Returns null when none is left.
void * device_alloc(int card, size_t bytes);
// Reserves addresses of device memory, on whole pages. They have no memory yet, and are never reused. Returns null when
// none are left.
void * device_reserve(size_t bytes);
// Takes memory of a card without an address; false when none is left.
bool device_take(int card, size_t bytes);
// Gives back memory that has no address.
void device_give(int card, size_t bytes);
// Gives memory that was taken an address behind those of the range that ends there, or of a new range.
bool device_map(int card, char * base, size_t bytes);

// Allocates pinned host memory. Returns null when no more may be pinned.
void * pinned_alloc(size_t bytes);
// Returns null when the memory is registered already, in part or wholly.
RangePtr add_registered(void * p, size_t bytes, bool read_only, bool & refused);

// Removes and returns the range that begins there; null when none does. Its operations must be over.
RangePtr take(void * p, Range::Where where);
void     release(const RangePtr & range); // for device and pinned memory

size_t device_free_bytes(int card);

} // namespace pretend
