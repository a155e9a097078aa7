// Counts evictions that were too early and uploads that were wasted, from the executions that followed. It is pure
// bookkeeping: no lock, no device.
//
// An eviction was too early if the next execution of its layer wants the expert. This is the first one that counts as
// demand among those whose mask is as new as the one that the eviction published, or newer. An upload was wasted if its
// expert is evicted and no execution in between wanted it while it was resident.
#pragma once

#include "core/slot_table.h"

#include <cstdint>
#include <vector>

namespace spac {

class Churn {
  public:
    // Notes that masks name the expert from now on.
    void loaded(ExpertId id) { at(id).fresh = true; }

    // Notes that masks of `version` and newer do not name the expert.
    void evicted(ExpertId id, uint64_t version) {
        Expert & expert = at(id);
        n_wasted_ += expert.fresh;
        expert.fresh = false;
        expert.gone  = version;
    }

    // Notes that an execution of a layer by the mask of `version` has ended. It wanted the experts with wanted[e], and
    // those with hit[e] (a part of them) were resident. Both are [n_expert].
    void executed(int il, uint64_t version, const std::vector<char> & wanted, const std::vector<char> & hit) {
        if (static_cast<size_t>(il) >= layers_.size()) {
            return; // nothing was ever loaded or evicted here
        }
        auto & experts = layers_[static_cast<size_t>(il)];
        for (size_t e = 0; e < experts.size() && e < wanted.size(); ++e) {
            Expert & expert = experts[e];
            expert.fresh    = expert.fresh && !hit[e];
            if (expert.gone != 0 && expert.gone <= version) {
                n_early_ += wanted[e] != 0;
                expert.gone = 0;
            }
        }
    }

    uint64_t n_wasted() const { return n_wasted_; } // uploads
    uint64_t n_early() const { return n_early_; }   // evictions

  private:
    struct Expert {
        bool     fresh = false; // resident and not used since it was loaded
        uint64_t gone  = 0;     // the version that an eviction published, until the next execution has judged it
    };

    Expert & at(ExpertId id) {
        const auto il = static_cast<size_t>(id.layer), e = static_cast<size_t>(id.expert);
        if (layers_.size() <= il) {
            layers_.resize(il + 1);
        }
        auto & experts = layers_[il];
        if (experts.size() <= e) {
            experts.resize(e + 1);
        }
        return experts[e];
    }

    std::vector<std::vector<Expert>> layers_;
    uint64_t                         n_wasted_ = 0, n_early_ = 0;
};

} // namespace spac
