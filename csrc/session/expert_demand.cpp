#include "session/expert_demand.h"

#include <algorithm>
#include <exception>
#include <thread>
#include <utility>

namespace spac {

ExpertDemand::ExpertDemand(std::shared_ptr<Experts> experts) : experts_(std::move(experts)) {
    if (experts_) {
        experts_->set_counting(false);
    }
}

void ExpertDemand::set_step_tokens(int n_tokens) {
    if (!experts_) {
        return;
    }
    constexpr int default_step_tokens = 64; // the backend starts with it: other users of the model may rely on it
    experts_->set_step_tokens(std::max(default_step_tokens, n_tokens));
    Step before;
    take(before); // drops what others left
}

void ExpertDemand::count(const std::function<void()> & decode, Step & step) {
    if (!experts_) {
        decode();
        return;
    }
    experts_->set_counting(true);
    try {
        listen(decode);
    } catch (...) {
        take(step); // so that it is not mistaken for the next verification's
        throw;
    }
    experts_->set_counting(false);
}

// Runs `decode`, and calls the layer listener for each layer.
void ExpertDemand::listen(const std::function<void()> & decode) {
    if (!on_layer_) {
        decode();
        return;
    }
    // An exception must not cross llama.cpp, so it is kept here. The state is shared, because a call of another
    // thread's decoding may end later than this one.
    struct State {
        std::thread::id    here = std::this_thread::get_id();
        std::exception_ptr failure;
    };
    const auto state = std::make_shared<State>();
    experts_->set_layer_listener([this, state](int il, const std::vector<int32_t> & demand) {
        if (std::this_thread::get_id() != state->here || state->failure) {
            return;
        }
        try {
            on_layer_(il, demand);
        } catch (...) {
            state->failure = std::current_exception();
        }
    });
    try {
        decode();
    } catch (...) {
        experts_->set_layer_listener(nullptr);
        throw;
    }
    experts_->set_layer_listener(nullptr);
    if (state->failure) {
        std::rethrow_exception(state->failure);
    }
}

void ExpertDemand::take(Step & step) {
    if (!experts_) {
        return;
    }
    experts_->set_counting(false);
    step.n_layer   = experts_->n_layer();
    step.n_expert  = experts_->n_expert();
    const size_t n = static_cast<size_t>(step.n_layer) * static_cast<size_t>(step.n_expert);
    if (n != demand_->size()) {
        // The layers became known with the first graph.
        demand_ = std::make_shared<std::vector<int32_t>>(n);
        costs_  = std::make_shared<std::vector<LayerCost>>(step.n_layer);
    }
    experts_->take_demand(demand_->data());
    experts_->take_layer_costs(costs_->data());
    step.demand      = demand_;
    step.layer_costs = costs_;
    count_uploads(step);
}

void ExpertDemand::count_uploads(Step & step) {
    const ExpertStats now = experts_->stats();
    step.upload_bytes     = now.upload_bytes - uploaded_.upload_bytes;
    step.upload_ns        = now.upload_ns - uploaded_.upload_ns;
    uploaded_             = now;
}

} // namespace spac
