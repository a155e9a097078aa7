// The interface of one loaded model's experts for the policy: layers, slots, residency, demand.
//
// This header and device.h are the backend's public interface. They name no ggml type, so bindings and the session can
// include them alone.
#pragma once

#include "core/home_process.h"
#include "core/not_copied.h"
#include "core/trace.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace spac {

// One MoE layer, in the order in which layers run.
struct LayerInfo {
    std::string name;         // the name of its down projection's tensor in the file
    int         n_expert;     // experts of this layer
    int         n_used;       // experts per token in the last graph (0 before the first one)
    size_t      expert_bytes; // bytes of one expert: all its matrices and biases
    int         pool;         // the pool of its slots; layers of a device whose experts have equal shapes and types
                              // share one
    int device;               // the index of its device in Experts::devices()
};

// Counters since the model was loaded. They never fall. Bytes and nanoseconds are totals over all layers and steps.
struct ExpertStats {
    uint64_t activations;        // (token, expert) pairs that decoding asked for
    uint64_t activations_hit;    // of these, pairs that the device computed
    uint64_t distinct;           // distinct (layer, expert) per step, summed over steps
    uint64_t distinct_hit;       // of these, resident ones
    uint64_t blocks;             // MoE blocks executed
    uint64_t blocks_device;      // of these, blocks wholly on the device (no wait for the host's part)
    uint64_t blocks_host;        // of these, blocks wholly on the host
    uint64_t uploads;            // experts copied into slots
    uint64_t upload_bytes;       // bytes of these copies
    uint64_t upload_failures;    // copies that failed (the expert stays on the CPU)
    uint64_t upload_ns;          // time from the start of a batch of copies to its end, failed batches included
    uint64_t uploads_wasted;     // uploads whose expert was evicted again without having been used
    uint64_t foreseen;           // (token, expert) pairs that looking ahead predicted
    uint64_t foreseen_right;     // of these, pairs that the router chose when its layer ran
    uint64_t evictions;          // experts that lost their slot
    uint64_t host_waits;         // waits of the host for a block's ids and input
    uint64_t host_wait_ns;       // time spent in these waits
    uint64_t host_compute_ns;    // time the CPU spent computing experts
    uint64_t download_bytes;     // ids and block inputs, device to host
    uint64_t blocks_streamed;    // blocks of large batches whose experts came to the device
    uint64_t stream_bytes;       // bytes of these blocks' experts that were copied over the link
    uint64_t stream_slot_bytes;  // bytes of these experts that were copied from slots
    uint64_t stream_ring_bytes;  // of stream_bytes, those that threads brought to pinned memory (set_upload_threads)
    uint64_t join_bytes;         // rows of blocks in which the host took part, whether or not the host computed them
    uint64_t graphs_prepared;    // graphs with MoE blocks that were met for the first time (graph_cache.h)
    uint64_t queue_ns;           // time inside the wrapped device's calls that queue copies and launches
    uint64_t disk_bytes;         // bytes that the process has read from disks; 0 if the experts fit into memory
    uint64_t ahead_ns;           // time in such calls on the helper's thread, beside the host's parts (split_stream.h)
    uint64_t early_bytes;        // read while the device computed (set_early_rows)
    uint64_t early;              // experts that were to be read so
    uint64_t early_right;        // of these, experts that their layer then used
    uint64_t misses_cpu;         // distinct (layer, expert) per step that were not resident and that the CPU computed
    uint64_t misses_loaded;      // of these, experts that came to the device within their layer instead
    uint64_t activations_loaded; // (token, expert) pairs of the latter
    uint64_t load_bytes;         // bytes of these copies
};

// The costs of one MoE layer's executions that count as demand. Times are those of the thread that decodes.
struct LayerCost {
    int64_t host_ns;            // time of computing experts on the CPU
    int64_t wait_ns;            // time of waiting for ids and input
    int32_t host_activations;   // (token, expert) pairs on the CPU
    int32_t host_distinct;      // distinct experts among them, summed over executions
    int32_t device_activations; // (token, expert) pairs on the device
    int32_t device_distinct;    // distinct experts among them, summed over executions
    int32_t loaded_distinct;    // of these, experts that were loaded within the layer
};

// Counts of tokens' experts in executions that count as demand. Distinct experts are counted for each execution.
struct ExpertCounts {
    int64_t activations        = 0; // (token, expert) pairs
    int64_t activations_hit    = 0; // pairs whose expert was resident
    int64_t activations_loaded = 0; // pairs whose expert was loaded within the layer
    int64_t distinct           = 0;
    int64_t distinct_hit       = 0;
    int64_t misses_cpu         = 0; // distinct experts that the CPU computed
    int64_t misses_loaded      = 0; // distinct experts that were loaded within the layer
};

// The reason why a part of the experts' memory is not pinned, although the device's driver can pin memory. It is the
// worst reason among a model's files.
enum class Unpinned { none, off, limit, refused };

// Where experts are computed that an execution uses and that are not resident: by the CPU, or by the device behind a
// copy within the layer.
enum class Miss { cpu, load };

// The bytes of a model's experts in memory that the device's driver has pinned, and in other memory.
struct HostBytes {
    size_t   pinned;
    size_t   pageable; // bytes in other memory
    Unpinned why;
};

struct SlotStats {
    int    n_slots;    // slots allocated
    int    n_resident; // experts in these slots
    size_t bytes;      // device memory of the slots
};

// One device's part of a model: the layers that it computes, and their slots. Counters are since the model was loaded.
struct ExpertDevice {
    std::string name;            // the wrapped device's name
    int         n_layer;         // MoE layers on it
    int         n_experts;       // experts of these layers
    SlotStats   slots;           // slots for these experts
    uint64_t    activations;     // (token, expert) pairs that decoding asked of these layers
    uint64_t    activations_hit; // of these, pairs whose expert was resident
    uint64_t    uploads;         // experts copied into slots
    uint64_t    upload_bytes;    // bytes of these copies
    uint64_t    upload_failures; // copies that failed
    uint64_t    upload_ns;       // time of these copies
    uint64_t    evictions;       // experts that lost their slot
};

// One model's experts. The model's store buffers and the holders of this handle own them. Any thread may call every
// method, from the model's first context to the handle's end. After the model is freed the slots are gone, and methods
// that would touch the device do nothing.
class Experts {
  public:
    virtual ~Experts() = default;

    // Guards against use in a child process, which lacks the threads that move and read the experts.
    const HomeProcess home;

    // Layers are known once the first context of the model exists, because they are found in its graph. Before that,
    // n_layer() returns 0.
    virtual int       n_layer() const     = 0;
    virtual int       n_expert() const    = 0; // the maximum over layers: the N of all [L, N] arrays
    virtual LayerInfo layer(int il) const = 0;

    // Returns the devices that hold MoE layers, in the order in which these run. They are known when the layers are.
    virtual std::vector<ExpertDevice> devices() const = 0;

    // Allocates `n_slots` slots in place of earlier ones, and begins with empty slots. The devices share the slots in
    // proportion to the experts of their layers. A device gets no more than fit beside `margins`, as long as others
    // have room for the rest, and margins are given up last. The pools of a device share its slots in the same way.
    // `margins` are bytes by device, or one number for every device; none means 0. Throws MemoryError with the number
    // that would fit, and InputError with the limit if kernels could not address so many slots of this size in one
    // tensor.
    virtual void attach_slots(int n_slots, const std::vector<size_t> & margins = {}) = 0;
    // Returns the number of slots that fit into the devices' free memory less `margins` and can be addressed.
    virtual int       slots_that_fit(const std::vector<size_t> & margins = {}) const = 0;
    virtual SlotStats slots() const                                                  = 0;
    // Returns the number of slots of each pool that a plan may fill, [n_pool].
    virtual std::vector<int> pool_slots() const = 0;

    // Returns the kind of host memory that the experts lie in, for reports. The values are "pinned" (the loader copied
    // the experts into memory of the device's driver), "pinned mapping" (the driver has registered the file's mapping),
    // "partly pinned" (a part of it is registered, and the other experts are staged), "staged" (pageable; copies go
    // through a pinned ring), "pageable", and "paged" (the experts exceed the memory, and are read from the file's
    // mapping when they are needed).
    virtual std::string host_memory() const = 0;
    // Returns the pinned and the pageable bytes. They are known when the layers are.
    virtual HostBytes host_bytes() const = 0;

    // Sets the plan: the state toward which the slots are driven from now on, in the background. The arrays are
    // priority[L * N] and threshold[L]. An expert is wanted if its priority is at least its layer's threshold. The
    // highest priority is loaded first, and a load never evicts equal or higher priority.
    virtual void submit(const int32_t * priority, const int32_t * threshold) = 0;
    // Waits until no further wanted expert can be loaded and returns true, or returns false after `timeout_s`.
    virtual bool settle(double timeout_s) = 0;
    // Fills in slot_of[L * N]: the slot of every expert in its pool, -1 if it is not resident.
    virtual void residency(int32_t * slot_of) const = 0;

    // ---- a draft of the model by itself (draft_copies.h)
    // Makes low-bit copies of all experts in device memory, of the type with this name, on `n_threads` threads. Throws
    // InputError for a type that does not fit and for layers on several devices, and MemoryError if the device has no
    // room.
    virtual void attach_draft_copies(const std::string & type, int n_threads) = 0;
    // Returns the device memory that such copies take. Throws InputError as attach_draft_copies() does.
    virtual size_t draft_copy_bytes(const std::string & type) const = 0;
    // Returns the device memory of the copies; 0 without them.
    virtual size_t draft_bytes() const = 0;
    // Switches draft passes on or off. In one, graphs with experts are computed with the copies, wholly on the device,
    // and leave the demand and its counters alone: set_counting(), take_demand() and routes() are about the draft's
    // choices then. Throws InputError without copies.
    virtual void set_draft_pass(bool on) = 0;

    // Switches whether decodes count as demand from now on. It is off while a prompt is read and while the library
    // warms up.
    virtual void set_counting(bool counting) = 0;
    // Takes the activations since the last call into demand[L * N], and zeroes the counts. Returns the steps (graphs)
    // that they come from.
    virtual int take_demand(int32_t * demand) = 0;
    // Fills in the experts of the last execution of every layer that counted, or of the tail that was noted since, by
    // token. The shape is
    // ids[n_layer * n_tokens * n_used] with the largest counts; entries that a layer does not have are -1. Returns
    // (n_tokens, n_used).
    virtual std::pair<int, int> routes(std::vector<int32_t> & ids) const = 0;
    // Takes the costs of the executions since the last call into costs[L], and zeroes them.
    virtual void take_layer_costs(LayerCost * costs) = 0;
    // A callback for each execution that counts. It is called on the thread that decodes, when all that the device
    // needs for the execution is queued. demand[n_expert of the layer] has the layer's activations since the last
    // take_demand(). It must not throw.
    using LayerListener = std::function<void(int il, const std::vector<int32_t> & demand)>;
    // Sets the callback. Null removes it and costs nothing. With a callback, the host waits for the ids of wholly
    // resident layers too. A call that another thread has begun may end after set_layer_listener() returns.
    virtual void set_layer_listener(LayerListener listener) = 0;
    // Sets the largest number of tokens of a batch that counts. Larger batches (prompts) never count, even with
    // set_counting(true). The default is 64.
    virtual void set_step_tokens(int n_max) = 0;

    // Notes the experts of the last `n_tokens` tokens of each execution that does not count, until this is set to 0.
    // routes() has those of the last execution then. It forgets the routes of before.
    virtual void set_tail_tokens(int n_tokens) = 0;
    // Divides the tokens that count from now on: the first n_tokens[0] tokens of each layer are part 0, and so on.
    // Further ones belong to no part.
    virtual void set_parts(const std::vector<int> & n_tokens) = 0;
    // Returns the counts of each part, and divides no longer. They are complete once the context is synchronized.
    virtual std::vector<ExpertCounts> take_parts() = 0;
    // Sets the number of tokens from which on batches that do not count as demand are streamed: all their experts are
    // copied through the device and computed there (prefill_runner.h). Slots are not touched. 0, the default, means
    // never.
    virtual void set_stream_tokens(int n) = 0;
    // Sets the number of tokens up to which each graph has staging, so that the CPU can compute a part of it. Larger
    // graphs get staging only if they do not stream. The default is no limit.
    virtual void set_staged_tokens(int n) = 0;
    // Returns the device memory that this takes from the first such batch on. slots_that_fit() leaves it free.
    virtual size_t stream_bytes() const = 0;
    // Sets how many layers are looked ahead, from the next graph on. Every layer's input also goes to the router of the
    // layer `n_layers` behind it, and the experts that this router would choose are loaded before all that the plan
    // wants (lookahead.h). 0, the default, switches it off.
    virtual void set_lookahead(int n_layers) = 0;
    // Switches rehearsing, for graphs whose results nobody wants: the CPU computes no experts, and every device
    // launches the kernels of its part as if experts were resident.
    virtual void set_rehearsing(bool on) = 0;
    // Switches reading rows of experts that a layer is foretold to leave to the CPU, into the processor's caches,
    // while the device computes what lies before their layer (split/early_rows.h). It is off by default.
    virtual void set_early_rows(bool on) = 0;

    // Sets where misses of executions that count as demand are computed, from the next graph on. With `most_recent`,
    // the plan goes by recency, so that a loaded expert takes the place of the least recent one. Otherwise it takes a
    // slot that the plan does not want: pool_slots() leaves some of each pool's slots for this.
    virtual void set_miss(Miss how, bool most_recent) = 0;

    virtual ExpertStats stats() const = 0;
    // Returns the trace that records blocks and copies. It is off until it is started.
    virtual std::shared_ptr<Trace> trace() const = 0;
};

// A scope that gives a handle on the experts of a model: `experts()` has those of the model that is loaded on this
// thread while the scope lives. Scopes nest, and each is used for one model. Without a scope, a model's experts are
// kept too, but there is no handle on them, so all are computed on the CPU.
class LoadScope : NotCopied {
  public:
    // `paged` means that the experts exceed the memory: the file is read only as it is needed, and is not pinned.
    explicit LoadScope(bool paged = false);
    ~LoadScope();

    std::shared_ptr<Experts> experts() const;

  private:
    std::shared_ptr<Experts> experts_;
    LoadScope *              outer_;
};

// A guard that makes loading fail where ggml would end the process.
//
// ggml ends the process when it meets a file or parameters that it cannot use (GGML_ABORT, GGML_ASSERT). While a guard
// lives on a thread, an abort on this thread becomes an exception. llama.cpp's own handlers around loading a model and
// making a context turn it into a failure that the caller sees, and so do those of its server around a request. Do not
// guard a decode: ggml's state is not made to be unwound while it computes.
class AbortGuard : NotCopied {
  public:
    AbortGuard();
    ~AbortGuard();

    // Returns true if a guard lives on this thread.
    static bool here();

    // Suspends the guards of this thread.
    class Pause : NotCopied {
      public:
        Pause();
        ~Pause();

      private:
        int before_;
    };
};

} // namespace spac
