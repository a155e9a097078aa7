// The demand for experts of a step's decodes.
#pragma once

#include "session/session.h"

#include <functional>
#include <memory>
#include <vector>

namespace spac {

class ExpertDemand {
  public:
    // `experts` may be null: nothing is counted then.
    explicit ExpertDemand(std::shared_ptr<Experts> experts);

    // Sets the largest number of tokens of a step's decode: all of them count as demand.
    void set_step_tokens(int n_tokens);
    // Sets the callback for the layers of every decode; see Listeners::verify_layer.
    using LayerListener = std::function<void(int layer, const std::vector<int32_t> & demand)>;
    void set_layer_listener(LayerListener listener) { on_layer_ = std::move(listener); }

    // Runs `decode`, which counts as demand, and calls the layer listener for each layer. An exception leaves no demand
    // behind for the next step.
    void count(const std::function<void()> & decode, Step & step);
    // Takes the demand of the calls of count() since the last call of this into the step.
    void take(Step & step);

  private:
    void listen(const std::function<void()> & decode);
    void count_uploads(Step & step);

    std::shared_ptr<Experts>                experts_;
    LayerListener                           on_layer_;
    std::shared_ptr<std::vector<int32_t>>   demand_   = std::make_shared<std::vector<int32_t>>();
    std::shared_ptr<std::vector<LayerCost>> costs_    = std::make_shared<std::vector<LayerCost>>();
    ExpertStats                             uploaded_ = {}; // counts at the step before
};

} // namespace spac
