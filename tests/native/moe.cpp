#include "moe.h"

#include <random>

namespace {

void fill(ggml_tensor * t, std::mt19937 & random) {
    const auto                      n = static_cast<size_t>(ggml_nelements(t));
    std::vector<float>              values(n);
    std::normal_distribution<float> normal(0.0F, 0.2F);
    for (float & value : values) {
        value = normal(random);
    }
    std::vector<char> data(ggml_nbytes(t));
    if (t->type == GGML_TYPE_F32) {
        memcpy(data.data(), values.data(), data.size());
    } else {
        ggml_quantize_chunk(t->type, values.data(), data.data(), 0, ggml_nrows(t), t->ne[0], nullptr);
    }
    ggml_backend_tensor_set(t, data.data(), 0, data.size());
}

ggml_context_ptr no_alloc_context(size_t n_tensors) {
    return ggml_context_ptr(ggml_init({n_tensors * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
}

} // namespace

MoeWeights::MoeWeights(const MoeShape & s, unsigned seed, const std::vector<Place> & places) : shape(s) {
    const auto n_layer = static_cast<size_t>(s.n_layer);
    for (size_t p = 0; p < places.size(); ++p) {
        ggml_context * experts = contexts_.emplace_back(no_alloc_context(4 * n_layer)).get();
        ggml_context * rest    = contexts_.emplace_back(no_alloc_context(n_layer)).get();
        for (size_t il = p * n_layer / places.size(); il < (p + 1) * n_layer / places.size(); ++il) {
            Layer layer     = {};
            layer.router    = ggml_new_tensor_2d(rest, GGML_TYPE_F32, s.width, s.n_expert);
            layer.up        = ggml_new_tensor_3d(experts, s.type, s.width, s.hidden, s.n_expert);
            layer.gate      = ggml_new_tensor_3d(experts, s.type, s.width, s.hidden, s.n_expert);
            layer.down      = ggml_new_tensor_3d(experts, s.type, s.hidden, s.width, s.n_expert);
            layer.down_bias = s.biases ? ggml_new_tensor_2d(experts, GGML_TYPE_F32, s.width, s.n_expert) : nullptr;
            layers.push_back(layer);
        }
        buffers_.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(experts, places[p].experts_in));
        buffers_.emplace_back(ggml_backend_alloc_ctx_tensors_from_buft(rest, places[p].rest_in));
    }
    for (const auto & buffer : buffers_) {
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    std::mt19937 random(seed);
    for (const Layer & layer : layers) {
        for (ggml_tensor * t : {layer.router, layer.up, layer.gate, layer.down, layer.down_bias}) {
            if (t != nullptr) {
                fill(t, random);
            }
        }
    }
}

MoeRunner::MoeRunner(const MoeWeights & weights, const std::vector<ggml_backend_dev_t> & devices) : weights_(weights) {
    for (ggml_backend_dev_t device : devices) {
        backends_.emplace_back(ggml_backend_dev_init(device, nullptr));
    }
    backends_.emplace_back(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    std::vector<ggml_backend_t> raw;
    for (const auto & backend : backends_) {
        raw.push_back(backend.get());
    }
    sched_.reset(ggml_backend_sched_new(raw.data(), nullptr, static_cast<int>(raw.size()), 1024, false, false));
}

std::vector<float> MoeRunner::run(const std::vector<float> & input) {
    const MoeShape & s        = weights_.shape;
    const auto       n_tokens = static_cast<int64_t>(input.size()) / s.width;
    ggml_context_ptr ctx      = no_alloc_context(64 * static_cast<size_t>(s.n_layer) + 16);
    ggml_context *   c        = ctx.get();
    ggml_cgraph *    graph    = ggml_new_graph(c);
    ggml_tensor *    first    = ggml_new_tensor_2d(c, GGML_TYPE_F32, s.width, n_tokens);
    ggml_set_input(first);
    ggml_tensor * x = first;
    for (const MoeWeights::Layer & layer : weights_.layers) {
        ggml_tensor * normed  = ggml_rms_norm(c, x, 1e-5F);
        ggml_tensor * probs   = ggml_soft_max(c, ggml_mul_mat(c, layer.router, normed));
        ggml_tensor * ids     = ggml_argsort_top_k(c, probs, s.n_used);
        ggml_tensor * weights = ggml_get_rows(c, ggml_reshape_3d(c, probs, 1, s.n_expert, n_tokens), ids);
        ggml_build_forward_expand(graph, weights);
        ggml_tensor * in   = ggml_reshape_3d(c, normed, s.width, 1, n_tokens);
        ggml_tensor * up   = ggml_mul_mat_id(c, layer.up, in, ids);
        ggml_tensor * gate = ggml_mul_mat_id(c, layer.gate, in, ids);
        ggml_tensor * out  = ggml_mul_mat_id(c, layer.down, ggml_swiglu_split(c, gate, up), ids);
        if (layer.down_bias != nullptr) {
            out = ggml_add_id(c, out, layer.down_bias, ids);
        }
        out = ggml_mul(c, out, weights);
        for (int i = 0; i < s.n_used; ++i) {
            x = ggml_add(c, x,
                         ggml_view_2d(c, out, s.width, n_tokens, out->nb[2], static_cast<size_t>(i) * out->nb[1]));
        }
    }
    ggml_set_output(x);
    ggml_build_forward_expand(graph, x);

    std::vector<float> output(input.size());
    ggml_backend_sched_reset(sched_.get());
    if (!ggml_backend_sched_alloc_graph(sched_.get(), graph)) {
        return {};
    }
    ggml_backend_tensor_set(first, input.data(), 0, input.size() * sizeof(float));
    if (ggml_backend_sched_graph_compute(sched_.get(), graph) != GGML_STATUS_SUCCESS) {
        return {};
    }
    ggml_backend_tensor_get(x, output.data(), 0, output.size() * sizeof(float));
    return output;
}
