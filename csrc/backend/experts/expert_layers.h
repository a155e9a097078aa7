// The MoE layers of one model: found in its graphs one by one, numbered in the order in which they run, and put into
// pools.
//
// The owner's mutex guards the list. Once it is frozen, layers stay where they are, and nothing of them changes but
// n_used.
#pragma once

#include "backend/experts/experts.h"
#include "backend/experts/slot_storage.h"
#include "core/slot_table.h"

#include <vector>

namespace spac {

class ExpertLayers {
  public:
    struct Layer {
        LayerInfo                 info;
        std::vector<ExpertWeight> weights;
    };

    // The layer with these weights (in the order of their use), added when it is new and the list is not frozen yet;
    // -1 when it is not part of the list. `device` tells how large a pool may be; null: what kernels can index.
    int find_or_add(const std::vector<const ggml_tensor *> & weights, int n_used, ggml_backend_dev_t device);
    // The policy has seen the list: layers that are found later run on the host.
    void freeze() { frozen_ = true; }

    bool          empty() const { return layers_.empty(); }
    int           size() const { return static_cast<int>(layers_.size()); }
    auto          begin() const { return layers_.begin(); }
    auto          end() const { return layers_.end(); }
    const Layer & operator[](int il) const { return layers_[il]; }
    int           n_expert() const; // the maximum over layers

    // ---- pools
    int n_pool() const { return n_pool_; }
    // The weights of one layer of every pool: what its slots have the shapes of.
    std::vector<std::vector<ExpertWeight>> prototypes() const;
    // How many slots of one tensor each pool may have on the device.
    std::vector<int> pool_limits(ggml_backend_dev_t device) const;
    // The same layers, as a slot table knows them.
    std::vector<SlotTable::Layer> table_layers() const;

  private:
    int pool_for(const Layer & layer, ggml_backend_dev_t device) const;

    std::vector<Layer> layers_;
    int                n_pool_ = 0;
    bool               frozen_ = false;
};

} // namespace spac
