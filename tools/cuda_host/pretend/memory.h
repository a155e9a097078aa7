// Device memory, pinned and registered host memory: what is where, and what was there.
//
// Device memory has two addresses, a fixed distance apart: the one that the program knows, where nobody may read or
// write, and the one where the pretend card works on it. So a program that looks into device memory ends as it would
// with a card.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

namespace pretend {

struct Range {
    enum class Where { device, pinned, registered };

    Where             where;
    char *            base;
    size_t            size;
    char *            backing; // where the bytes can be touched
    bool              read_only = false;
    std::atomic<int>  in_use{0}; // operations under way that touch it
    std::atomic<bool> gone{false};

    bool   holds(const void * p, size_t n) const;
    char * at(const void * p) const { return backing + (static_cast<const char *>(p) - base); }
};
using RangePtr = std::shared_ptr<Range>;

// The range that an address lies in; null: memory that the driver knows nothing of.
RangePtr find(const void * p);
// Whether a range begins behind an address, and before the end of so many bytes.
bool runs_into_range(const void * p, size_t bytes);

// Where all device memory's addresses lie, and how far from there the bytes are.
struct Window {
    char *    base   = nullptr;
    size_t    size   = 0;
    ptrdiff_t offset = 0;
};
const Window & device_window();

// Device memory, zeroed, or full of NaNs where POISON is set; null when there is none left.
void * device_alloc(size_t bytes);
// Pinned host memory; null when no more may be pinned.
void * pinned_alloc(size_t bytes);
// Null when it is registered already, in part or wholly.
RangePtr add_registered(void * p, size_t bytes, bool read_only, bool & refused);

// Takes the range that begins there out of the books; null when none does. What is under way must be over.
RangePtr take(void * p, Range::Where where);
void     release(const RangePtr & range); // device and pinned memory

size_t device_free_bytes();

} // namespace pretend
