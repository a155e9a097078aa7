// The host's part of a block: the chain on the other experts, from the store, on the CPU backend.
//
// It has that backend and a thread pool. Without a pool, ggml starts and ends its threads at every graph, and a step
// has a graph per layer here. The streams of a context on several devices run one after the other, so they share both:
// threads of another pool would still spin when the next stream computes.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/split_graph.h"
#include "backend/split/thread_pool.h"
#include "core/mask.h"
#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <mutex>

namespace spac {

// The CPU backend of a host part, and its threads.
struct HostThreads {
    std::mutex                  in_use; // held while a graph is computed
    std::unique_ptr<ThreadPool> pool;   // outlives the backend that computes with it
    ggml_backend_ptr            cpu;
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

    // Runs the host's part of an execution, whose ids and input are in staging. It counts the demand if `counts`. It
    // chooses the rows that the device does not compute by the mask (null: all rows), and computes them into
    // b.host_out. The other rows are zero there, unless the host has no rows at all. `wait_ns` is the time of the wait
    // for ids and input.
    struct Served {
        int         n_rows;
        ggml_status status;
        int64_t     ns; // time of computing
    };
    // `resident` is the mask without the experts that were loaded for this execution.
    Served serve(const SplitBlock & b, const Staging & s, const Mask * mask, const Mask * resident, bool counts,
                 int64_t wait_ns);
    // Zeroes all of b.host_out.
    static void clear(const SplitBlock & b);

  private:
    static int select(const SplitBlock & b, const Staging & s, const Mask * mask);

    bool                         share_cores_;
    std::shared_ptr<HostThreads> threads_; // null before the first graph
    int                          n_threads_ = 1;
};

} // namespace spac
