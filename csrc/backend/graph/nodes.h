// Making the nodes of prepared graphs: leaves, lookups and copies of a chain's nodes, in memory that is there already.
#pragma once

#include "backend/graph/split_graph.h"

#include <initializer_list>
#include <unordered_map>
#include <vector>

namespace spac {

// What stands for a node of llama.cpp's graph in a copy of its chain.
using NodeMap = std::unordered_map<const ggml_tensor *, ggml_tensor *>;

ggml_tensor * leaf(ggml_context * ctx, ggml_type type, std::initializer_list<int64_t> ne, void * data,
                   ggml_backend_buffer_t buffer);
// get_rows into memory of ours.
ggml_tensor * lookup(ggml_context * ctx, ggml_tensor * table, ggml_tensor * ids, void * data,
                     ggml_backend_buffer_t buffer);
// A table of one number an expert as [1, n_expert, n_tokens] with no step between tokens: one lookup for all ids.
ggml_tensor * table_leaf(ggml_context * ctx, ggml_type type, int64_t n_expert, int64_t n_tokens, void * data,
                         ggml_backend_buffer_t buffer);
// Copies one node; its sources are looked up in `map` and kept where they are not there.
ggml_tensor * copy_node(ggml_context * ctx, const ggml_tensor * node, NodeMap & map);

// A graph of nodes of our own that says how often each is read by the others.
ggml_cgraph * count_uses(ggml_context * ctx, const std::vector<ggml_tensor *> & nodes);

// Looks every row's scales up on the device, by the router's ids: the tables are those of all experts. With `to`, the
// pairs' rows of the output (compact form), also picks these. The lookups are added to `nodes`.
void add_device_scales(ggml_context * ctx, SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch,
                       ggml_tensor * to, NodeMap & map, std::vector<ggml_tensor *> & nodes);

} // namespace spac
