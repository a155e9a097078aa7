// The parts of a block's execution: the device's half, the host's half, and the loader of misses.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/experts/model_experts.h"
#include "backend/graph/split_graph.h"
#include "backend/split/early_rows.h"
#include "backend/split/hand_off.h"
#include "backend/split/next_experts.h"
#include "backend/split/thread_pool.h"
#include "backend/stream/compute_stream.h"
#include "core/mask.h"
#include "core/not_copied.h"

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace spac {

// The device's part of a block: the chain on resident experts, by the mask.
//
// It owns the masks on the device: one row of slot ids per layer. The compute stream refreshes a row when a block has a
// newer version of its mask. If the device's kernels cannot read negative ids, there are no masks on the device. Then
// the part is compact: it consists of the (token, expert) pairs that the host lists.
class DevicePart {
  public:
    explicit DevicePart(ComputeStream & stream);

    // Returns true if the block's part was made for other slots than those of `now`.
    static bool stale(const SplitBlock & b, const ModelExperts::Snapshot & now) {
        return b.storage_generation != now.generation || b.storage.expired();
    }
    // Makes the part. No launch that reads the older one may be under way. `scratch` is the staging on the device.
    void prepare(SplitBlock & b, const Staging & s, ggml_backend_buffer_t scratch, const ModelExperts::Snapshot & now);

    // Queues the part, and holds the memory that it reads. The masked form computes the block's output, with zeros in
    // the host's rows. The compact form computes separate rows, and needs the ids in staging.
    ggml_status launch(SplitBlock & b, const Staging & s, const std::shared_ptr<const Mask> & mask,
                       const ggml_cgraph * graph);
    // Masked form, with a mask that is chosen after the part was queued and before the stream runs it. reserve_row()
    // returns the memory to which write_row() then writes the mask's row.
    bool        rows_pinned(const SplitBlock & b) { return stream_.is_pinned(masks_of(*b.experts)->staging); }
    int32_t *   reserve_row(const SplitBlock & b);
    static void write_row(const LateMask & late, const Mask * mask); // null: no resident expert
    ggml_status launch(SplitBlock & b, const LateMask & late, const ggml_cgraph * graph);
    // Compact form: queues the copies of these rows into the output, behind those of the host's rows.
    ggml_status scatter(const SplitBlock & b, const ggml_cgraph * graph);

    // Returns true if blocks get the masked form.
    bool masked() const { return masked_; }

  private:
    // Slot ids on the device, one row per layer, and the version of the mask in each row.
    struct MaskTable {
        ggml_context_ptr           ctx;
        ggml_backend_buffer_ptr    buffer;
        std::vector<ggml_tensor *> rows;
        std::vector<uint64_t>      versions;
        // the host memory that rows are copied from, pinned if the device can: two places per layer, used in turn
        ggml_backend_buffer_ptr staging;
        size_t                  width = 0; // number of ids in a place
        std::vector<uint64_t>   n_sent;    // rows sent so far, by layer
        std::vector<uint64_t>   left;      // by place: the mark behind the last copy from it
    };

    MaskTable * masks_of(ModelExperts & experts);
    void        refresh_mask(const SplitBlock & b, const std::shared_ptr<const Mask> & mask);
    void        send_row(const SplitBlock & b, const int32_t * row, uint64_t version);
    int         send_pairs(SplitBlock & b, const Staging & s, const Mask & mask);

    ComputeStream & stream_;
    bool            masked_; // the device's kernels read negative ids

    std::map<ModelExperts *, std::pair<std::shared_ptr<ModelExperts>, MaskTable>> mask_tables_;
};

// The host's part of a block: the chain on the other experts, from the store, on the CPU backend.
//
// It has that backend and a thread pool. Without a pool, ggml starts and ends its threads at every graph, and a step
// has a graph per layer here. The streams of a context on several devices run one after the other, so they share both:
// threads of another pool would still spin when the next stream computes.

// The CPU backend of a host part, and its threads.
struct HostThreads {
    std::mutex                  in_use; // held while a graph is computed
    std::unique_ptr<ThreadPool> pool;   // outlives the backend that computes with it
    ggml_backend_ptr            cpu;
    NextExperts                 next;
    EarlyRows                   early_rows;
};

class HostPart : NotCopied {
  public:
    // `share_cores` means that the device computes on the same cores, so waiting threads leave them at once.
    explicit HostPart(bool share_cores) : share_cores_(share_cores) {}

    // Sets the number of threads from the next start() on.
    void set_n_threads(int n_threads);
    // Prepares the thread pool for a graph of this model. The threads are this graph's as long as the lock lives.
    // Throws DeviceError if the CPU backend cannot be started.
    [[nodiscard]] std::unique_lock<std::mutex> start(ModelExperts & experts);

    // Read rows of experts early. begin_early() begins a graph, keep_input() keeps the input of a block that has
    // arrived, and read_early() reads for the next block, by its mask, until the gate has passed the signal.
    void begin_early(const SplitGraph & g) { threads_->next.begin(g); }
    void keep_input(const SplitBlock & b, const Staging & s) { threads_->next.keep(b, s); }
    void read_early(const SplitBlock & b, const Mask * mask, const Gate & gate, uint64_t mark);
    // Counts the experts of the last read_early(), and those among them that the block has used, by its ids.
    void note_early(const SplitBlock & b, const std::vector<int32_t> & ids);
    // Runs the host's part of an execution, whose ids and input are in staging. It chooses the rows that the device
    // does not compute by the mask (null: all rows), and computes them into b.host_out. The other rows are zero there,
    // unless the host has no rows at all.
    struct Served {
        int         n_rows;
        ggml_status status;
        int64_t     ns; // time of computing
    };
    Served serve(const SplitBlock & b, const Staging & s, const Mask * mask);
    // Zeroes all of b.host_out.
    static void clear(const SplitBlock & b);

  private:
    static int select(const SplitBlock & b, const Staging & s, const Mask * mask);

    bool                          share_cores_;
    std::shared_ptr<HostThreads>  threads_; // null before the first graph
    std::vector<EarlyRows::Range> early_;
    std::vector<int32_t>          early_ids_; // whose rows are read
    int                           n_threads_ = 1;
};

// The loader of misses: it brings experts that a block uses and that are not resident to the device, within the layer.
//
// The ids are on the host then. The loader gives slots to missing experts (core/residency.h) and queues their copies on
// a copy stream U of its own. D waits for U, and then runs the device's part by a mask that has them. The host computes
// the others meanwhile. When D has passed a later mark, the experts are published: they are resident from then on.
class MissLoader : NotCopied {
  public:
    explicit MissLoader(ComputeStream & stream) : stream_(stream) {}
    ~MissLoader();

    // Returns true if misses of this graph may be loaded.
    static bool loads(const SplitGraph & g);
    // Queues the copies of missing experts of a block, whose ids have arrived, and the wait for them. Returns the mask
    // for this execution, and the mask without these experts, which is for counting only. Call finish() before the next
    // load().
    struct Masks {
        std::shared_ptr<const Mask> used, resident;
    };
    Masks load(SplitBlock & b, const Staging & s, ModelExperts::Snapshot now);
    // Waits for the copies of the last load(), and notes their time.
    void await();
    // Publishes the experts of the last load(). The compute stream has passed a mark behind their copies.
    void finish();

  private:
    bool make_stream();
    void copy(const ModelExperts & experts, const ModelExperts::Misses & misses);

    ComputeStream &               stream_;
    ggml_backend_event_ptr        copied_;
    ggml_backend_ptr              copies_; // U
    bool                          refused_ = false;
    std::shared_ptr<ModelExperts> experts_; // of the load under way; null without one
    ModelExperts::Misses          under_way_;
    size_t                        bytes_    = 0;
    int64_t                       start_ns_ = 0, end_ns_ = 0; // of the copies; no end before await()
};

} // namespace spac
