// The list of one model's MoE layers. They are found in its graphs one by one, numbered in the order in which they run,
// and put into pools.
//
// The owner's mutex guards the list. Once it is frozen, layers keep their addresses, and only their n_used changes.
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
        ggml_backend_dev_t        device;
    };

    // Returns the layer with these weights (in the order of their use). It adds a new layer of `device` if the list is
    // not frozen yet, and returns -1 otherwise. The device limits the size of a pool; if it is null, only the range of
    // kernels' indices does.
    int find_or_add(const std::vector<const ggml_tensor *> & weights, int n_used, ggml_backend_dev_t device);
    // Closes the list, because the policy has seen it. Layers that are found later run on the host.
    void freeze() { frozen_ = true; }

    bool          empty() const { return layers_.empty(); }
    int           size() const { return static_cast<int>(layers_.size()); }
    auto          begin() const { return layers_.begin(); }
    auto          end() const { return layers_.end(); }
    const Layer & operator[](int il) const { return layers_[il]; }
    int           n_expert() const; // returns the maximum over layers

    // ---- devices, in the order of their first layers
    const std::vector<ggml_backend_dev_t> & devices() const { return devices_; }

    // ---- pools
    int n_pool() const { return n_pool_; }
    // Returns the weights of one layer of each pool, whose shapes the pool's slots have.
    std::vector<std::vector<ExpertWeight>> prototypes() const;
    // Returns for each pool the most slots that one tensor may stack on the pool's device.
    std::vector<int> pool_limits() const;
    // Returns the layers in a slot table's form.
    std::vector<SlotTable::Layer> table_layers() const;
    // Returns the same, where layers of other devices have no experts.
    std::vector<SlotTable::Layer> table_layers_on(int device) const;

  private:
    int pool_for(const Layer & layer, ggml_backend_dev_t device) const;

    std::vector<Layer>              layers_;
    std::vector<ggml_backend_dev_t> devices_;
    int                             n_pool_ = 0;
    bool                            frozen_ = false;
};

} // namespace spac
