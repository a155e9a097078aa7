// The finder of a graph's MoE blocks, by dataflow.
//
// A block is the chain of nodes between a layer's chosen experts (`ids`, from the router) and the experts' outputs. It
// consists of the mul_mat_id and add_id nodes that read store weights with these ids, and the row-wise nodes between
// them. Every row of the output ([width, n_used, n_tokens]) depends only on the same row of every node of the chain, on
// the block's input and on one expert. So device and host may compute different rows. (A scale per expert behind the
// last matrix is not part of the chain. It can be multiplied with the joined rows.)
#pragma once

#include "backend/device/ggml_internals.h"

#include <vector>

namespace spac {

// A number for every expert, in device memory, with which a node of the chain multiplies the expert's row. The graph
// looks it up through `repeat` and `get_rows`, which lie in the block's range. Each side has its own lookup in their
// place.
struct Scale {
    const ggml_tensor * rows;  // the graph's lookup, which the chain reads, [1, n_used, n_tokens]
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
    std::vector<const ggml_tensor *> weights;         // store weights, in the order of their use
    std::vector<Scale>               scales;          // in the order of their use
    // True if rows can be computed on both sides. Otherwise (an adapter in the chain, an unusual op, tokens that may
    // name an expert twice) each node that reads the store is its own block, and runs on the host.
    bool splittable = false;
    // True if there is staging for the block's rows. Without it, prefill streaming must run the block.
    bool is_staged = true;

    int n_used() const { return static_cast<int>(ids->ne[0]); }
    int n_tokens() const { return static_cast<int>(ids->ne[1]); }

    size_t n_pairs() const { return static_cast<size_t>(n_used()) * n_tokens(); } // (token, expert)
};

// Returns the store weight that a node reads through ids: src[0] of mul_mat_id, src[1] of add_id. It is null for other
// nodes.
const ggml_tensor * store_weight(const ggml_tensor * node);

// Returns the blocks of a graph, in order. Their ranges do not overlap. `repeats` is true if the device computes a
// token that names an expert twice (GroveMoE's small experts, whose ids are divided). ggml-cuda's kernels do not.
std::vector<Block> find_blocks(const ggml_cgraph * graph, bool repeats);

} // namespace spac
