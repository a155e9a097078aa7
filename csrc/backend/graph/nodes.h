// Makers of the nodes of prepared graphs: leaves, lookups and copies of a chain's nodes, in memory that exists already.
#pragma once

#include "backend/graph/split_graph.h"

#include <initializer_list>
#include <unordered_map>
#include <vector>

namespace spac {

// The replacements of llama.cpp's nodes in a copy of their chain.
using NodeMap = std::unordered_map<const ggml_tensor *, ggml_tensor *>;

ggml_tensor * leaf(ggml_context * ctx, ggml_type type, std::initializer_list<int64_t> ne, void * data,
                   ggml_backend_buffer_t buffer);
// Makes a get_rows node that writes to spac's memory.
ggml_tensor * lookup(ggml_context * ctx, ggml_tensor * table, ggml_tensor * ids, void * data,
                     ggml_backend_buffer_t buffer);
// Makes a leaf for a table of one number per expert. Its shape is [1, n_expert, n_tokens] with stride 0 between tokens,
// so that one lookup serves all ids.
ggml_tensor * table_leaf(ggml_context * ctx, ggml_type type, int64_t n_expert, int64_t n_tokens, void * data,
                         ggml_backend_buffer_t buffer);
// Copies one node, and replaces its sources that are in `map`.
ggml_tensor * copy_node(ggml_context * ctx, const ggml_tensor * node, NodeMap & map);

// Makes a graph of spac's own nodes, with the counts of how often the nodes read each other.
ggml_cgraph * count_uses(ggml_context * ctx, const std::vector<ggml_tensor *> & nodes);

// Adds lookups of every row's scales on the device to `nodes`. They use the router's ids, since the tables have all
// experts. With `to`, the pairs' rows of the output (compact form), it also adds nodes that pick these rows.
void add_device_scales(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                       ggml_tensor * to, NodeMap & map, std::vector<ggml_tensor *> & nodes);

} // namespace spac
