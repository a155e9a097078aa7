// The router of a block, which turns the block's input into scores of its experts. It is found by dataflow, as blocks
// are.
#pragma once

#include "backend/graph/moe_block.h"

#include <vector>

namespace spac {

struct Router {
    enum class Activation { none, softmax, sigmoid, sqrt_softplus };

    const ggml_tensor * weight      = nullptr; // [width, n_expert] on the device; null: the router was not recognized
    const ggml_tensor * product     = nullptr; // the node that multiplies the weight with the router's input
    bool                own_input   = false;   // this input is not the block's: Llama 4, Gemma 4
    const ggml_tensor * bias        = nullptr; // [n_expert] F32, or null
    Activation          activation  = Activation::none;
    const ggml_tensor * choice_bias = nullptr; // added after the activation, for the choice: [n_expert] F32, or null
    // Experts are in groups. A token uses the groups whose two best experts have the highest sums.
    int n_groups      = 1;
    int n_groups_used = 1;
};

// Returns the block's router, if it consists of one matrix.
Router router_of(const Block & block);
// Copies the router's matrix from the device, [n_expert, width]. Its type must be F32, or convertible to it.
std::vector<float> matrix_of(const Router & router);

// Computes on the host which experts a router chooses, from its matrix's products. It is not thread-safe.
class Chooser {
  public:
    // Copies the biases from the device.
    explicit Chooser(const Router & router);
    // Writes the best `n_used` of `n_expert` experts for one token to `chosen`, best first. It changes `scores`.
    void choose(float * scores, int n_expert, int n_used, int32_t * chosen) const;

  private:
    void activate(float * scores, int n_expert) const;
    void leave_groups_out(float * scores, int n_expert) const;

    std::vector<float> bias_, choice_bias_;
    Router::Activation activation_;
    int                n_groups_, n_groups_used_;
};

} // namespace spac
