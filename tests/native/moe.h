// A small MoE network on ggml alone. It drives the SPAC device without llama.cpp. Its weights are once on the device
// (experts in the store) and once in plain host memory, where the CPU backend computes the expected result.
#pragma once

#include "backend/device/ggml_internals.h"

#include <cstdint>
#include <memory>
#include <vector>

struct MoeShape {
    int       n_layer  = 3;
    int       n_expert = 7;
    int       n_used   = 2;
    int       width    = 64;
    int       hidden   = 32;
    bool      biases   = false; // true if the experts have biases, as in gpt-oss
    ggml_type type     = GGML_TYPE_Q8_0;
};

// The weights of one copy of the network.
class MoeWeights {
  public:
    // Expert weights go to `experts_in`, others to `rest_in`. Equal seeds give equal weights.
    MoeWeights(const MoeShape & shape, unsigned seed, ggml_backend_buffer_type_t experts_in,
               ggml_backend_buffer_type_t rest_in);

    struct Layer {
        ggml_tensor * router;
        ggml_tensor * up;
        ggml_tensor * gate;
        ggml_tensor * down;
        ggml_tensor * down_bias; // null without biases
    };
    MoeShape           shape;
    std::vector<Layer> layers;

  private:
    ggml_context_ptr        expert_ctx_, rest_ctx_;
    ggml_backend_buffer_ptr experts_, rest_;
};

// Runs the network for one stream of calls, as a llama.cpp context does. It has backends, a scheduler, and graphs of
// several sizes.
class MoeRunner {
  public:
    // If `device` is null, only the CPU backend computes.
    MoeRunner(const MoeWeights & weights, ggml_backend_dev_t device);

    // Maps input[width * n_tokens] to an output of the same size. The output is empty if the backend failed.
    std::vector<float> run(const std::vector<float> & input);

  private:
    const MoeWeights &            weights_;
    std::vector<ggml_backend_ptr> backends_;
    ggml_backend_sched_ptr        sched_;
};
