// A graph prepared for split execution: the graph's blocks, and for each the nodes that each side runs.
//
// Built once per graph (graphs that llama.cpp reuses keep their uid) and executed many times by a SplitStream.
// prepare() makes the host's nodes, copies that read the store and live in the stream's host arena, and the join;
// device_part and turn_runner make the device's when they are first needed: copies of the chain's nodes that read
// slots, or the weights that pass through, and write where the originals would. Shapes are those of the graph, except
// in compact form.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/slot_storage.h"
#include "backend/experts/weight_turns.h"
#include "backend/graph/graph_image.h"
#include "backend/graph/moe_block.h"
#include "backend/graph/router.h"

#include <memory>
#include <vector>

namespace spac {

class ModelExperts;

// Bump allocation inside a fixed range, or (base null) a measurement of what would be needed.
class Arena {
  public:
    explicit Arena(void * base = nullptr) : base_(static_cast<char *>(base)) {}
    char * take(size_t bytes) {
        char * p = base_ + used_;           // with a null base: an offset that nobody follows
        used_ += (bytes + 255) / 256 * 256; // more than any device asks for
        return p;
    }
    size_t used() const { return used_; }
    void   rewind(size_t mark) { used_ = mark; }

  private:
    char * base_;
    size_t used_ = 0;
};

// Memory that a stream lends to the blocks of its graphs. Blocks run one after the other and share it.
struct Staging {
    // host, pinned where the device can: ids as the graph has them, the block's input; in compact form three lists of
    // all pairs: rows of the input, of the output, and slots
    char *    ids;
    char *    input;
    int32_t * index;
    // host: ids of the host's part
    int32_t * host_ids;
    // scores of a later block's experts, [n_expert, n_tokens]: on the host, on the device
    float * host_scores;
    char *  scores;
    // device: the host's rows, slot ids of the device's part
    char * device_rows;
    char * device_ids;
    // device, compact form: rows of the block's input and of its output, and their indices
    char * compact_input;
    char * compact_output;
    char * compact_index;
    // device: the scales of all rows, one list a scale; in compact form also of the pairs
    char * device_scales;
    char * compact_scales;

    // What the router chose for a token, once it has arrived.
    const int32_t * ids_of(const Block & block, int token) const {
        return reinterpret_cast<const int32_t *>(ids + static_cast<size_t>(token) * block.ids->nb[1]);
    }
};

// Nodes that are launched together. With a uid, they and their shapes are as at the last launch with it: the device may
// keep what it prepared for them. CUDA keeps a graph of its own by the address of the first node; that is to be one of
// ours, for llama.cpp builds graphs of all shapes at the same addresses.
struct Part {
    std::vector<ggml_tensor *> nodes;
    uint64_t                   uid = 0;
    // How often nodes of our own are read, without which devices fuse none of them; null: as llama.cpp's graph says.
    const ggml_cgraph * uses = nullptr;

    void fix() { uid = ggml_graph_next_uid(); }
};

struct SplitBlock;

// A block whose router is shown the input of an earlier one (lookahead.h).
struct Foresight {
    SplitBlock *  block;
    ggml_tensor * scores; // its matrix's products with that input, in staging
    Chooser       chooser;
};

struct SplitBlock {
    Block                         block;
    std::shared_ptr<ModelExperts> experts;
    int                           layer    = -1; // in experts; -1: always on the host
    int                           n_expert = 0;
    size_t                        ids_span = 0; // bytes from the first id to the last

    Part before; // the dense nodes up to this block
    Part joined; // the join of the block before this one, and these
    // The same for a block of which the host has a part, with what the host is told: scores of a later block's router,
    // and, in place, what copies the ids, the input and the scores to the host's staging.
    Part told_before, told_joined;
    // Kernels write ids, input and scores into the host's staging, and the join reads the host's rows there: nothing of
    // this block is copied but by kernels.
    bool in_place = false;

    // The host's part.
    ggml_cgraph *                   host_graph = nullptr;
    ggml_tensor *                   host_input = nullptr;
    ggml_tensor *                   host_out   = nullptr;
    std::vector<std::vector<float>> host_scales; // copies of the scales' tables

    // The device's part, made when slots are there and again when they were replaced.
    uint64_t                           storage_generation = 0;
    std::shared_ptr<const SlotStorage> storage;
    ggml_context_ptr                   device_ctx;
    Part                               device_nodes;
    std::vector<ggml_tensor *>         device_chain; // the chain's copies among them
    ggml_tensor *                      slot_lookup     = nullptr;
    ggml_tensor *                      compact_ids     = nullptr;
    ggml_tensor *                      compact_gather  = nullptr;
    ggml_tensor *                      compact_scatter = nullptr;
    std::vector<ggml_tensor *> compact_scales;    // of every scale: the pairs' numbers, and how the chain reads them
    int                        compact_pairs = 0; // of the execution under way
    bool                       device_can    = false; // the device has kernels for all of the chain

    // Of a block whose experts come to the device in turns: lookups ahead of the turns, and these.
    ggml_context_ptr           turn_ctx;
    std::vector<ggml_tensor *> turn_head;
    std::vector<WeightTurn>    turns;

    // Puts the host's rows into the block's output: out + rows, where one of the two is zero in every row. All rows go
    // over, so that it has one shape, and can be queued before the host has chosen. (A sum with zero is exact but for
    // the sign of a zero, and a weighted sum over a token's experts, next in every architecture, drops that.)
    ggml_tensor * join      = nullptr;
    ggml_tensor * join_rows = nullptr;

    // Looking ahead, from this block; and what an earlier one foresaw of this, [n_tokens, n_used], until it runs.
    std::unique_ptr<Foresight> foresight;
    std::vector<int32_t>       foreseen;

    // Where the ids of a block that ran wholly on the device land, to be counted later: in staging, apart from what
    // blocks share.
    char * late_ids = nullptr;
};

struct SplitGraph {
    explicit SplitGraph(const ggml_cgraph * graph);

    GraphImage          image;
    uint64_t            uid;
    int                 n_nodes;
    const ggml_tensor * first;
    uint64_t            used     = 0;     // for the least recently used one to go
    bool                met_late = false; // some layer was not known when slots were attached
    int                 distance = 0;     // of its foresights, in blocks; 0: none
    bool                in_place = false; // prepared to hand over without copies, where that can be
    ggml_context_ptr    ctx;
    std::vector<std::unique_ptr<SplitBlock>> blocks;
    std::vector<Staging>                     staging;      // by block
    int                                      n_tokens = 0; // of the largest block: the last layer may compute fewer
    Part                                     tail;         // the dense nodes behind the last block
    Part                                     joined_tail;  // its join, and these

    // All turns of its blocks, in order, as made for batches from `turn_tokens` on and the weight stream in force.
    struct BlockTurn {
        const SplitBlock * block;
        const WeightTurn * turn;
    };
    std::vector<BlockTurn> turns;
    int                    turn_tokens     = 0;
    uint64_t               turn_generation = 0;
};

// Bytes of host and of device memory that the blocks of a graph share.
struct StagingSize {
    size_t host   = 0;
    size_t device = 0;
};
StagingSize staging_size(const std::vector<Block> & blocks);

// How blocks hand over without copies, on a device whose kernels reach pinned memory of the host.
struct InPlace {
    static constexpr int n_numbers = 4096;

    ggml_backend_buffer_t host    = nullptr; // the staging's
    ggml_tensor *         numbers = nullptr; // i32 [n_numbers] on the device: 0, 1, 2 and so on; null: copies it is
};

// Prepares a graph; `host` and `device` are at least of staging_size(). The buffer is the device memory's. `distance`:
// in blocks, how far is looked ahead; 0: not at all.
std::unique_ptr<SplitGraph> prepare(const ggml_cgraph * graph, std::vector<Block> blocks, void * host,
                                    ggml_backend_buffer_t device, int distance, const InPlace & in_place);

} // namespace spac
