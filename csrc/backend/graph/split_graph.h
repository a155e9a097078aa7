// A graph prepared for split execution: the graph's blocks, and for each block the nodes that each side runs.
//
// It is built once per graph (graphs that llama.cpp reuses keep their uid), and a SplitStream executes it many times.
// prepare() makes the join and the host's nodes: copies that read the store and lie in the stream's host arena.
// device_part and prefill_runner make the device's nodes when they are first needed: copies of the chain's nodes that
// read slots, or the weights that pass through, and write to the originals' memory. Shapes are those of the graph,
// except in compact form.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/draft_copies.h"
#include "backend/experts/slot_storage.h"
#include "backend/graph/moe_block.h"
#include "backend/graph/router.h"

#include <initializer_list>
#include <memory>
#include <unordered_map>
#include <vector>

namespace spac {

class ModelExperts;

// A bump allocator inside a fixed range. With a null base, it measures how much memory would be needed.
class Arena {
  public:
    explicit Arena(void * base = nullptr) : base_(static_cast<char *>(base)) {}
    char * take(size_t bytes) {
        char * p = base_ + used_;           // with a null base, an offset that is never dereferenced
        used_ += (bytes + 255) / 256 * 256; // a coarser alignment than any device needs
        return p;
    }
    size_t used() const { return used_; }
    void   rewind(size_t mark) { used_ = mark; }

  private:
    char * base_;
    size_t used_ = 0;
};

// A stream's memory for the blocks of its graphs. Blocks run one after the other and share it.
struct Staging {
    // host, pinned if the device can: ids in the graph's layout, the block's input; in compact form three lists of all
    // pairs: rows of the input, rows of the output, and slots
    char *    ids;
    char *    input;
    int32_t * index;
    // host: ids of the host's part
    int32_t * host_ids;
    // scores of a later block's experts, [n_expert, n_tokens]: on the host, and on the device
    float * host_scores;
    char *  scores;
    // device: the host's rows, slot ids of the device's part
    char * device_rows;
    char * device_ids;
    // device, compact form: rows of the block's input and of its output, and their indices
    char * compact_input;
    char * compact_output;
    char * compact_index;
    // device: the scales of all rows, one list per scale; in compact form also the scales of the pairs
    char * device_scales;
    char * compact_scales;

    // Returns the ids that the router chose for a token. They must have arrived.
    const int32_t * ids_of(const Block & block, int token) const {
        return reinterpret_cast<const int32_t *>(ids + static_cast<size_t>(token) * block.ids->nb[1]);
    }
};

// Nodes that are launched together. If a part has a uid, its nodes and shapes are the same at each launch with this
// uid, so the device may keep what it prepared for them. CUDA finds its graph by the address of the first node. This
// must be a node of spac's, since llama.cpp builds graphs of all shapes at the same addresses.
struct Part {
    std::vector<ggml_tensor *> nodes;
    uint64_t                   uid = 0;
    // The use counts of spac's own nodes, without which devices fuse none of them. Null: those of llama.cpp's graph.
    const ggml_cgraph * uses = nullptr;

    void fix() { uid = ggml_graph_next_uid(); }
};

// An image of a graph's tensors, which recognizes the graph when it is built anew.
//
// llama.cpp builds a graph whenever the shape of a batch changes, always in the same memory. So a graph of an earlier
// shape consists of the same bytes at the same addresses. Only its uid is new.
class GraphImage {
  public:
    explicit GraphImage(const ggml_cgraph * graph);

    // Returns true if the graph has these nodes, and if they and the tensors that they read are unchanged. Then kept
    // pointers to its tensors are valid again.
    bool matches(const ggml_cgraph * graph) const;

  private:
    void add(const ggml_tensor * t);

    int                              n_nodes_;
    std::vector<const ggml_tensor *> places_; // the nodes in their order, then other tensors that they read
    std::vector<ggml_tensor>         tensors_;
};

struct SplitBlock;

// A prediction for a later block: an earlier block's input also goes to its router (lookahead.h).
struct Foresight {
    SplitBlock *  block;
    ggml_tensor * scores; // the products of the router's matrix with that input, in staging
    Chooser       chooser;
};

struct SplitBlock {
    Block                         block;
    std::shared_ptr<ModelExperts> experts;
    int                           layer    = -1; // in experts; -1: always on the host
    int                           n_expert = 0;
    size_t                        ids_span = 0; // bytes from the first id to the last

    Part before; // the dense nodes up to this block
    Part joined; // the join of the block before this one, and then `before`
    // The same two for a block in which the host takes part, with more nodes. These compute scores of a later block's
    // router. If `in_place`, they also copy the ids, the input and the scores to the host's staging.
    Part predicting_before, predicting_joined;
    // True if kernels write ids, input and scores into the host's staging, and the join reads the host's rows there. No
    // other copies are made for this block.
    bool in_place = false;

    // The host's part.
    ggml_cgraph *                   host_graph = nullptr;
    ggml_tensor *                   host_input = nullptr;
    ggml_tensor *                   host_out   = nullptr;
    std::vector<std::vector<float>> host_scales; // copies of the scales' tables

    // The device's part. It is made when there are slots, and again when they were replaced. Only launches hold the
    // slots' memory. A graph that is kept for its next run would keep memory that was given back.
    uint64_t                         storage_generation = 0;
    std::weak_ptr<const SlotStorage> storage;
    ggml_context_ptr                 device_ctx;
    Part                             device_nodes;
    std::vector<ggml_tensor *>       device_chain; // the copies of the chain among device_nodes
    ggml_tensor *                    slot_lookup     = nullptr;
    ggml_tensor *                    compact_ids     = nullptr;
    ggml_tensor *                    compact_gather  = nullptr;
    ggml_tensor *                    compact_scatter = nullptr;
    std::vector<ggml_tensor *>
         compact_scales;        // for every scale the pairs' numbers, and the leaf by which the chain reads them
    int  compact_pairs = 0;     // number of pairs in the execution under way
    bool device_can    = false; // the device has kernels for all of the chain

    // A draft pass: the chain on the low-bit copies of the experts.
    std::weak_ptr<const DraftCopies> draft_copies;
    ggml_context_ptr                 draft_ctx;
    Part                             draft_nodes;

    // Prefill streaming: the lookups ahead of the block's stages, and the stages.
    ggml_context_ptr           stage_ctx;
    std::vector<ggml_tensor *> stage_head;
    std::vector<WeightStage>   stages;

    // Adds the host's rows to the block's output: out + rows, where one of the two is zero in every row. All rows are
    // sent, so that the join has one shape and can be queued before the host knows its rows. (A sum with zero is exact
    // except for the sign of a zero. In every architecture a weighted sum over a token's experts follows, which drops
    // that sign.)
    ggml_tensor * join      = nullptr;
    ggml_tensor * join_rows = nullptr;

    // Looking ahead: this block's prediction for a later one, and the experts that an earlier block predicted for this
    // one, [n_tokens, n_used], until it runs.
    std::unique_ptr<Foresight> foresight;
    std::vector<int32_t>       foreseen;

    // Host memory for the ids of a block that ran wholly on the device, which are counted later. It is a part of
    // staging that blocks do not share.
    char * late_ids = nullptr;
};

struct SplitGraph {
    explicit SplitGraph(const ggml_cgraph * graph);

    GraphImage          image;
    uint64_t            uid;
    int                 n_nodes;
    const ggml_tensor * first;
    uint64_t            used      = 0;     // time of the last use: the least recently used graph is dropped first
    bool                met_late  = false; // some layer was unknown when slots were attached
    int                 distance  = 0;     // distance of its predictions, in blocks; 0: none
    bool                in_place  = false; // prepared for the hand-off in place, for blocks that can do it
    bool                is_staged = true;  // all its blocks have staging
    ggml_context_ptr    ctx;
    std::vector<std::unique_ptr<SplitBlock>> blocks;
    std::vector<Staging>                     staging;      // by block
    int                                      n_tokens = 0; // tokens of the largest block; the last layer may have fewer
    Part                                     tail;         // the dense nodes behind the last block
    Part                                     joined_tail;  // the last block's join, and then `tail`

    // All stages of its blocks, in order. They were made for batches of at least `stage_tokens` tokens, and for the
    // weight stream with number `stage_generation`.
    struct BlockStage {
        const SplitBlock *  block;
        const WeightStage * stage;
    };
    std::vector<BlockStage> stages;
    int                     stage_tokens     = 0;
    uint64_t                stage_generation = 0;
};

// Bytes of host memory and of device memory for a graph's blocks.
struct StagingSize {
    size_t host   = 0;
    size_t device = 0;
};
StagingSize staging_size(const std::vector<Block> & blocks);

// The means of the hand-off in place, on a device whose kernels reach pinned memory of the host.
struct InPlace {
    static constexpr int n_numbers = 4096;

    ggml_backend_buffer_t host    = nullptr; // the staging's buffer
    ggml_tensor *         numbers = nullptr; // i32 [n_numbers] on the device: 0, 1, 2, …; null: the hand-off copies
};

// Prepares a graph. `host` and `device`, a buffer of device memory, have at least staging_size(). `distance` is the
// number of blocks that are looked ahead; 0 means none.
std::unique_ptr<SplitGraph> prepare(const ggml_cgraph * graph, std::vector<Block> blocks, void * host,
                                    ggml_backend_buffer_t device, int distance, const InPlace & in_place);

// ---- makers of the nodes of prepared graphs: leaves, lookups and copies of a chain's nodes, in memory that exists
// already (nodes.cpp)

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
