// The registration of a model file's mapping with the device's driver ("pinning"): copies from what is registered run
// beside everything else and need no staging.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "core/pinned_ranges.h"

#include <vector>

namespace spac {

// Whether the device's driver can register host memory at all.
bool can_register(ggml_backend_dev_t device);

// Bytes of experts that the process may still pin (device.h: set_pinning), and what else it has pinned of them.
size_t pinning_room();
void   count_pinned(size_t bytes);
void   uncount_pinned(size_t bytes);

// Owns the registrations of one mapping. They are made slice by slice, for a driver may refuse more than some total:
// what it has taken until then stays registered, and nothing more is tried.
class PinnedMapping {
  public:
    // `ranges` is told of every registration, and must live longer.
    explicit PinnedMapping(PinnedRanges & ranges) : ranges_(ranges) {}
    ~PinnedMapping();
    PinnedMapping(const PinnedMapping &)             = delete;
    PinnedMapping & operator=(const PinnedMapping &) = delete;

    // Registers the mapping, in which `weights` (in any order) are spac's own. It touches every page. Returns what kept
    // a part of it from being registered.
    Unpinned make(ggml_backend_dev_t device, Extent mapping, std::vector<Extent> weights);

  private:
    PinnedRanges &      ranges_;
    ggml_backend_dev_t  device_ = nullptr;
    std::vector<Extent> slices_; // that are registered
};

} // namespace spac
