// Finding the MoE blocks of a graph by dataflow.
//
// A block is the chain of nodes between a layer's chosen experts (`ids`, from the router) and the experts' outputs: the
// mul_mat_id and add_id nodes that read store weights with these ids, and the row-wise nodes between them. Every row of
// the output ([width, n_used, n_tokens]) depends on the same row of every node of the chain, on the block's input and
// on one expert, and on nothing else: that is what makes it legal to compute some rows here and some there. (A scale
// per expert behind the last matrix is not part of the chain: it is as well multiplied with what was joined.)
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

// A number for every expert, in device memory, that a node of the chain multiplies the expert's row with. The graph
// looks it up through `repeat` and `get_rows`; these lie in the block's range, and each side has a lookup of its own
// instead.
struct Scale {
    const ggml_tensor * rows;  // what the chain reads: the graph's lookup, [1, n_used, n_tokens]
    const ggml_tensor * table; // [n_expert] F32

    int n_expert() const { return static_cast<int>(ggml_nelements(table)); }
};

struct Block {
    int                              first = 0; // the range of the chain in the graph; other nodes may lie in between
    int                              last  = 0;
    std::vector<ggml_tensor *>       chain;           // in order
    ggml_tensor *                    ids   = nullptr; // [n_used, n_tokens] int32, rows may be strided
    ggml_tensor *                    input = nullptr; // [width, 1 or n_used, n_tokens]
    ggml_tensor *                    out   = nullptr; // the chain's last node
    std::vector<const ggml_tensor *> weights;         // of the store, in the order of their use
    std::vector<Scale>               scales;          // in the order of their use
    // Whether rows can be computed on both sides. If not (an adapter in the chain, an unusual op, tokens that may name
    // an expert twice), each node that reads the store is a block of its own, and runs on the host.
    bool splittable = false;

    int n_used() const { return static_cast<int>(ids->ne[0]); }
    int n_tokens() const { return static_cast<int>(ids->ne[1]); }

    size_t n_pairs() const { return static_cast<size_t>(n_used()) * n_tokens(); } // (token, expert)
};

// The store weight that a node reads through ids: src[0] of mul_mat_id, src[1] of add_id; null for other nodes.
const ggml_tensor * store_weight(const ggml_tensor * node);

// The blocks of a graph, in order; ranges do not overlap. `repeats`: whether the device computes a token that names an
// expert twice (GroveMoE's small experts, whose ids are divided). ggml-cuda's kernels do not.
std::vector<Block> find_blocks(const ggml_cgraph * graph, bool repeats);

} // namespace spac
