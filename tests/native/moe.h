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
    // The memory of some layers: of their experts, and of their other weights.
    struct Place {
        ggml_backend_buffer_type_t experts_in, rest_in;
    };
    // Each place gets as many layers as the next one, in order. Equal seeds give equal weights.
    MoeWeights(const MoeShape & shape, unsigned seed, const std::vector<Place> & places);

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
    std::vector<ggml_context_ptr>        contexts_;
    std::vector<ggml_backend_buffer_ptr> buffers_;
};

// Runs the network for one stream of calls, as a llama.cpp context does. It has backends, a scheduler, and graphs of
// several sizes.
class MoeRunner {
  public:
    // Without devices, only the CPU backend computes.
    MoeRunner(const MoeWeights & weights, const std::vector<ggml_backend_dev_t> & devices);

    // Maps input[width * n_tokens] to an output of the same size. The output is empty if the backend failed.
    std::vector<float> run(const std::vector<float> & input);

  private:
    const MoeWeights &            weights_;
    std::vector<ggml_backend_ptr> backends_;
    ggml_backend_sched_ptr        sched_;
};
