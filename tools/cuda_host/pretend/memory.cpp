#include "memory.h"

#include "counts.h"
#include "settings.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include <sys/mman.h>
#include <unistd.h>

namespace pretend {
namespace {

struct Books {
    std::mutex                    mutex;
    std::map<char *, RangePtr>    ranges; // by base; ranges do not overlap
    std::array<size_t, max_cards> device = {};
    size_t                        pinned = 0;
    size_t                        mapped = 0; // bytes of the window: addresses are never reused
};

// The books, which are locked while it lives.
class Locked {
  public:
    Books * operator->() const { return &books(); }

  private:
    static Books & books() {
        static auto * one = new Books;
        return *one;
    }

    std::lock_guard<std::mutex> lock_{books().mutex};
};

size_t pages(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return (bytes + page - 1) / page * page;
}

RangePtr make(Range::Where where, char * base, size_t size, char * backing) {
    auto range     = std::make_shared<Range>();
    range->where   = where;
    range->base    = base;
    range->size    = size;
    range->backing = backing;
    return range;
}

// Puts memory where the card works with the bytes of these addresses.
bool back(char * base, size_t bytes) {
    char * const backing = base + device_window().offset;
    if (mmap(backing, pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0) == MAP_FAILED) {
        return false;
    }
    if (settings().poison) {
        std::memset(backing, 0xFF, bytes);
    }
    return true;
}

// Returns the last range that begins before `end`, or null.
RangePtr last_before(const Locked & books, const char * end) {
    const auto after = books->ranges.lower_bound(const_cast<char *>(end));
    return after == books->ranges.begin() ? nullptr : std::prev(after)->second;
}

} // namespace

const Window & device_window() {
    static const Window one = [] {
        constexpr size_t size = size_t{1} << 44;
        void * const     both = mmap(nullptr, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        return both == MAP_FAILED ? Window() : Window{static_cast<char *>(both), size, ptrdiff_t{size}};
    }();
    return one;
}

bool Range::holds(const void * p, size_t n) const {
    const auto offset = static_cast<size_t>(static_cast<const char *>(p) - base);
    return p >= base && offset <= size && n <= size - offset;
}

RangePtr find(const void * p) {
    const Locked books;
    const auto * at    = static_cast<const char *>(p);
    RangePtr     range = last_before(books, at + 1);
    return range != nullptr && at < range->base + range->size ? range : nullptr;
}

bool runs_into_range(const void * p, size_t bytes) {
    const Locked   books;
    const auto *   at    = static_cast<const char *>(p);
    const RangePtr range = last_before(books, at + bytes);
    return range != nullptr && range->base > at;
}

void * device_alloc(int card, size_t bytes) {
    constexpr size_t grain = size_t{512}; // a card rounds up more where it must
    const size_t     size  = (bytes + grain - 1) / grain * grain;
    auto * const     base  = static_cast<char *>(device_take(card, size) ? device_reserve(size) : nullptr);
    return base != nullptr && device_map(card, base, size) ? base : nullptr;
}

void * device_reserve(size_t bytes) {
    const Locked   books;
    const Window & window = device_window();
    const size_t   needed = pages(bytes) + pages(1); // a page that nobody may touch lies behind
    if (needed > window.size - books->mapped) {
        return nullptr;
    }
    books->mapped += needed;
    return window.base + books->mapped - needed;
}

bool device_take(int card, size_t bytes) {
    const Locked books;
    const bool   enough = bytes > 0 && bytes <= settings().memory - books->device.at(card);
    books->device.at(card) += enough ? bytes : 0;
    return enough;
}

void device_give(int card, size_t bytes) { Locked()->device.at(card) -= bytes; }

bool device_map(int card, char * base, size_t bytes) {
    const Locked books;
    if (!back(base, bytes)) {
        return false;
    }
    const RangePtr before = last_before(books, base);
    if (before != nullptr && before->base + before->size == base) {
        before->size += bytes;
        return true;
    }
    books->ranges[base]       = make(Range::Where::device, base, bytes, base + device_window().offset);
    books->ranges[base]->card = card;
    return true;
}

void * pinned_alloc(size_t bytes) {
    const Locked books;
    if (bytes == 0 || bytes > settings().pinned - books->pinned) {
        return nullptr;
    }
    void * p = mmap(nullptr, pages(bytes) + pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return nullptr;
    }
    auto * base = static_cast<char *>(p);
    mprotect(base + pages(bytes), pages(1), PROT_NONE);
    books->pinned += bytes;
    books->ranges[base] = make(Range::Where::pinned, base, bytes, base);
    return p;
}

RangePtr add_registered(void * p, size_t bytes, bool read_only, bool & refused) {
    const Locked   books;
    auto * const   base   = static_cast<char *>(p);
    const RangePtr before = last_before(books, base + bytes);
    refused               = bytes > settings().pinned - books->pinned;
    if (refused || (before != nullptr && before->base + before->size > base)) {
        return nullptr;
    }
    books->pinned += bytes;
    RangePtr & range = books->ranges[base];
    range            = make(Range::Where::registered, base, bytes, base);
    range->read_only = read_only;
    return range;
}

RangePtr take(void * p, Range::Where where) {
    const Locked books;
    const auto   found = books->ranges.find(static_cast<char *>(p));
    if (found == books->ranges.end() || found->second->where != where) {
        return nullptr;
    }
    RangePtr range = found->second;
    range->gone    = true;
    (where == Range::Where::device ? books->device.at(range->card) : books->pinned) -= range->size;
    books->ranges.erase(found);
    return range;
}

void release(const RangePtr & range) {
    if (range->where == Range::Where::device) {
        mmap(range->backing, pages(range->size), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
             0);
    } else {
        munmap(range->base, pages(range->size) + pages(1));
    }
}

size_t device_free_bytes(int card) { return settings().memory - Locked()->device.at(card); }

} // namespace pretend
