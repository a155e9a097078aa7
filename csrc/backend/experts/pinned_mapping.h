// The registration of a model file's mapping with the device's driver ("pinning"). Copies from registered memory run
// beside all other work and need no staging.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/experts.h"
#include "core/pinned_ranges.h"

#include <vector>

namespace spac {

// Returns true if the device's driver can register host memory.
bool can_register(ggml_backend_dev_t device);

// Returns the bytes of experts that the process may still pin (settings.h: set_pinning). The two functions behind it
// count bytes of experts that are pinned in another way.
size_t pinning_room();
void   count_pinned(size_t bytes);
void   uncount_pinned(size_t bytes);

// The registrations of one mapping. They are made slice by slice, because a driver may refuse more than some total.
// After a refusal, earlier slices stay registered, and no more are tried.
class PinnedMapping {
  public:
    // Adds every registration to `ranges`, which must live longer than this object.
    explicit PinnedMapping(PinnedRanges & ranges) : ranges_(ranges) {}
    ~PinnedMapping();
    PinnedMapping(const PinnedMapping &)             = delete;
    PinnedMapping & operator=(const PinnedMapping &) = delete;

    // Registers the mapping, and touches every page. `weights` (in any order) are spac's own, and borders of
    // registrations lie inside them (core/pinned_ranges.h). Returns the reason why a part is not registered.
    Unpinned make(ggml_backend_dev_t device, Extent mapping, std::vector<Extent> weights);

  private:
    PinnedRanges &      ranges_;
    ggml_backend_dev_t  device_ = nullptr;
    std::vector<Extent> slices_; // the registered ones
};

} // namespace spac
