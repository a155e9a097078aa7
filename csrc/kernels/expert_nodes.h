// The nodes of a layer's experts in a graph of ggml's.
#pragma once

#include "ggml-cpu.h"
#include "ggml.h"

#include <cstddef>
#include <cstdint>

struct ggml_cgraph;

namespace spac::kernels {

// Returns the type to which a matrix's rows of input are quantized.
inline ggml_type input_type(const ggml_tensor * weights) {
    return ggml_get_type_traits_cpu(weights->type)->vec_dot_type;
}

// Returns true if the tensors share memory.
bool overlap(const ggml_tensor * a, const ggml_tensor * b);

// Returns the address of the row of an expert's place among a token's.
inline char * row_of(const ggml_tensor * t, int64_t place, int64_t token) {
    return static_cast<char *>(t->data) + static_cast<size_t>(place) * t->nb[1] + static_cast<size_t>(token) * t->nb[2];
}

// Returns true if the tensor has a row of floats for each id.
bool has_rows(const ggml_tensor * t, const ggml_tensor * ids);

// A product of experts, and the sum with their biases if there is one.
struct Product {
    const ggml_tensor * product = nullptr; // mul_mat_id
    const ggml_tensor * biased  = nullptr; // add_id, or null
    int64_t             first   = 0;       // the first row of the weights

    const ggml_tensor * weights() const { return product->src[0]; }
    const ggml_tensor * inputs() const { return product->src[1]; }
    const ggml_tensor * ids() const { return product->src[2]; }
    const ggml_tensor * out() const { return biased != nullptr ? biased : product; }
};

// A layer's experts.
struct Layer {
    Product             gate, up, down; // gate and up may be halves of one product
    const ggml_tensor * glu  = nullptr;
    const ggml_tensor * mul  = nullptr; // products of down's rows with the router's weights, or null
    const ggml_tensor * sum  = nullptr; // their sum over a token's experts
    int                 last = 0;       // the last node's index

    int64_t n_used() const { return down.ids()->ne[0]; }
    int64_t n_tokens() const { return down.ids()->ne[1]; }
};

// Finds the layer whose first node this is. Returns false if no layer of this form begins there.
bool find_layer(const ggml_cgraph * graph, int first, Layer & layer);

} // namespace spac::kernels
