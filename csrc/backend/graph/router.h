// The router of a block: what turns the block's input into scores of its experts, found by dataflow like the block.
#pragma once

#include "backend/graph/moe_block.h"

#include <vector>

namespace spac {

struct Router {
    enum class Activation { none, softmax, sigmoid, sqrt_softplus };

    const ggml_tensor * weight      = nullptr; // [width, n_expert] on the device; null: the router was not recognized
    const ggml_tensor * product     = nullptr; // the node that multiplies it with what it reads
    bool                own_input   = false;   // which is not what the block reads: Llama 4, Gemma 4
    const ggml_tensor * bias        = nullptr; // [n_expert] F32, or null
    Activation          activation  = Activation::none;
    const ggml_tensor * choice_bias = nullptr; // added behind the activation, to choose by: [n_expert] F32, or null
    // Experts stand in groups, of which a token uses those with the best two experts.
    int n_groups      = 1;
    int n_groups_used = 1;
};

// A router of one matrix.
Router router_of(const Block & block);

// Which experts a router chooses, from its matrix's products on the host. Not thread-safe.
class Chooser {
  public:
    // Copies the biases from the device.
    explicit Chooser(const Router & router);
    // The best `n_used` of `n_expert` for one token, best first, to `chosen`. Changes `scores`.
    void choose(float * scores, int n_expert, int n_used, int32_t * chosen) const;

  private:
    void activate(float * scores, int n_expert) const;
    void leave_groups_out(float * scores, int n_expert) const;

    std::vector<float> bias_, choice_bias_;
    Router::Activation activation_;
    int                n_groups_, n_groups_used_;
};

} // namespace spac
