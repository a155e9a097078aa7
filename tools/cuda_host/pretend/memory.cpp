#include "memory.h"

#include "counts.h"
#include "settings.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <shared_mutex>

#include <sys/mman.h>
#include <unistd.h>

namespace pretend {
namespace {

struct Books {
    std::shared_mutex             mutex;
    std::map<char *, RangePtr>    ranges; // by base; ranges do not overlap
    std::array<size_t, max_cards> device = {};
    size_t                        pinned = 0;
    size_t                        mapped = 0; // bytes of the window: addresses are never reused
};

Books & books() {
    static auto * one = new Books;
    return *one;
}

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

// A page that nobody may touch lies behind the addresses, here and at the card's.
char * reserve(Books & b, size_t bytes) {
    const Window & window = device_window();
    if (pages(bytes) + pages(1) > window.size - b.mapped) {
        return nullptr;
    }
    char * const base = window.base + b.mapped;
    b.mapped += pages(bytes) + pages(1);
    return base;
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

RangePtr make_on_device(int card, char * base, size_t bytes) {
    RangePtr range = make(Range::Where::device, base, bytes, base + device_window().offset);
    range->card    = card;
    return range;
}

bool overlaps(const Books & b, const char * base, size_t size) {
    const auto after = b.ranges.lower_bound(const_cast<char *>(base) + size);
    return after != b.ranges.begin() && std::prev(after)->second->base + std::prev(after)->second->size > base;
}

} // namespace

const Window & device_window() {
    static const Window one = [] {
        Window window;
        window.size   = size_t{1} << 44;
        void * both   = mmap(nullptr, 2 * window.size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        window.base   = both == MAP_FAILED ? nullptr : static_cast<char *>(both);
        window.size   = both == MAP_FAILED ? 0 : window.size;
        window.offset = static_cast<ptrdiff_t>(window.size);
        return window;
    }();
    return one;
}

bool Range::holds(const void * p, size_t n) const {
    const auto offset = static_cast<size_t>(static_cast<const char *>(p) - base);
    return p >= base && offset <= size && n <= size - offset;
}

RangePtr find(const void * p) {
    Books &                b = books();
    const std::shared_lock lock(b.mutex);
    const auto             after = b.ranges.upper_bound(const_cast<char *>(static_cast<const char *>(p)));
    if (after == b.ranges.begin()) {
        return nullptr;
    }
    const RangePtr & range = std::prev(after)->second;
    return p < range->base + range->size ? range : nullptr;
}

bool runs_into_range(const void * p, size_t bytes) {
    Books &                b = books();
    const std::shared_lock lock(b.mutex);
    auto * const           begin = const_cast<char *>(static_cast<const char *>(p));
    const auto             next  = b.ranges.upper_bound(begin);
    return next != b.ranges.end() && next->first < begin + bytes;
}

void * device_alloc(int card, size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    constexpr size_t      grain = size_t{512}; // a card rounds up more where it must
    const size_t          size  = (bytes + grain - 1) / grain * grain;
    if (size == 0 || size > settings().memory - b.device.at(card)) {
        return nullptr;
    }
    char * const base = reserve(b, size);
    if (base == nullptr || !back(base, size)) {
        return nullptr;
    }
    b.device.at(card) += size;
    b.ranges[base] = make_on_device(card, base, size);
    return base;
}

void * device_reserve(size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    return reserve(b, bytes);
}

bool device_take(int card, size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    if (bytes == 0 || bytes > settings().memory - b.device.at(card)) {
        return false;
    }
    b.device.at(card) += bytes;
    return true;
}

void device_give(int card, size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    b.device.at(card) -= bytes;
}

bool device_map(int card, char * base, size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    if (!back(base, bytes)) {
        return false;
    }
    const auto after = b.ranges.upper_bound(base);
    if (after != b.ranges.begin()) {
        const RangePtr & before = std::prev(after)->second;
        if (before->base + before->size == base) {
            before->size += bytes;
            return true;
        }
    }
    b.ranges[base] = make_on_device(card, base, bytes);
    return true;
}

void * pinned_alloc(size_t bytes) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    if (bytes == 0 || bytes > settings().pinned - b.pinned) {
        return nullptr;
    }
    void * p = mmap(nullptr, pages(bytes) + pages(1), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        return nullptr;
    }
    auto * base = static_cast<char *>(p);
    mprotect(base + pages(bytes), pages(1), PROT_NONE);
    b.pinned += bytes;
    b.ranges[base] = make(Range::Where::pinned, base, bytes, base);
    return p;
}

RangePtr add_registered(void * p, size_t bytes, bool read_only, bool & refused) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    auto * const          base = static_cast<char *>(p);
    refused                    = bytes > settings().pinned - b.pinned;
    if (refused || overlaps(b, base, bytes)) {
        return nullptr;
    }
    b.pinned += bytes;
    RangePtr & range = b.ranges[base];
    range            = make(Range::Where::registered, base, bytes, base);
    range->read_only = read_only;
    return range;
}

RangePtr take(void * p, Range::Where where) {
    Books &               b = books();
    const std::lock_guard lock(b.mutex);
    const auto            found = b.ranges.find(static_cast<char *>(p));
    if (found == b.ranges.end() || found->second->where != where) {
        return nullptr;
    }
    RangePtr range = found->second;
    range->gone    = true;
    (where == Range::Where::device ? b.device.at(range->card) : b.pinned) -= range->size;
    b.ranges.erase(found);
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

size_t device_free_bytes(int card) {
    Books &                b = books();
    const std::shared_lock lock(b.mutex);
    return settings().memory - b.device.at(card);
}

} // namespace pretend
