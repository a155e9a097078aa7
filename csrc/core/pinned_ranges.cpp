#include "core/pinned_ranges.h"

#include <algorithm>
#include <iterator>

namespace spac {
namespace {

uintptr_t address(const void * p) { return reinterpret_cast<uintptr_t>(p); }

// Finds where slices may begin and end: at pages that lie in a weight, or at its ends.
class Borders {
  public:
    Borders(const std::vector<Extent> & weights, size_t page) : weights_(weights), page_(page) {}

    // Returns the last border up to an address, or 0 if there is none.
    uintptr_t before(uintptr_t at) const {
        auto next = std::upper_bound(weights_.begin(), weights_.end(), at,
                                     [](uintptr_t a, const Extent & weight) { return a < weight.begin; });
        while (next != weights_.begin()) {
            --next;
            const uintptr_t border = std::min(at, next->end) / page_ * page_;
            if (border >= next->begin) {
                return border;
            }
        }
        return 0;
    }
    // Returns the first border from an address on, or 0 if there is none.
    uintptr_t from(uintptr_t at) const {
        auto next = std::lower_bound(weights_.begin(), weights_.end(), at,
                                     [](const Extent & weight, uintptr_t a) { return weight.end < a; });
        for (; next != weights_.end(); ++next) {
            const uintptr_t border = (std::max(at, next->begin) + page_ - 1) / page_ * page_;
            if (border <= next->end) {
                return border;
            }
        }
        return 0;
    }

  private:
    const std::vector<Extent> & weights_;
    const size_t                page_;
};

} // namespace

void PinnedRanges::add(const void * begin, size_t bytes) {
    const std::lock_guard lock(mutex_);
    ranges_[address(begin)] = address(begin) + bytes;
}

void PinnedRanges::remove(const void * begin) {
    const std::lock_guard lock(mutex_);
    ranges_.erase(address(begin));
}

std::vector<PinnedRanges::Slice> PinnedRanges::slices(const void * data, size_t bytes) const {
    const uintptr_t    begin = address(data), end = begin + bytes;
    std::vector<Slice> slices;
    uintptr_t          at  = begin;
    const auto         cut = [&](uintptr_t to, bool pinned) {
        if (to > at) {
            slices.push_back({at - begin, to - at, pinned});
            at = to;
        }
    };
    const std::lock_guard lock(mutex_);
    auto                  range = ranges_.upper_bound(at);
    if (range != ranges_.begin()) {
        --range; // this one may reach into the source
    }
    for (; range != ranges_.end() && range->first < end; ++range) {
        if (range->second > at) {
            cut(range->first, false);
            cut(std::min(range->second, end), true);
        }
    }
    cut(end, false);
    return slices;
}

size_t PinnedRanges::pinned_bytes(const void * data, size_t bytes) const {
    size_t sum = 0;
    for (const Slice & slice : slices(data, bytes)) {
        sum += slice.pinned ? slice.bytes : 0;
    }
    return sum;
}

std::vector<Extent> pin_slices(Extent mapping, const std::vector<Extent> & weights, size_t page, size_t slice,
                               size_t most) {
    const Borders       borders(weights, page);
    const uintptr_t     last = borders.before(mapping.end);
    std::vector<Extent> slices;
    uintptr_t           at = borders.from(mapping.begin);
    while (at != 0 && at < last) {
        const size_t room = std::min<size_t>(most, last - at);
        uintptr_t    to   = borders.before(at + std::min(room, slice));
        if (to <= at) { // there is no weight within a slice's length, so the slice becomes longer
            to = borders.from(at + page);
        }
        if (to <= at || to - at > room) {
            break;
        }
        slices.push_back({at, to});
        most -= to - at;
        at = to;
    }
    return slices;
}

} // namespace spac
