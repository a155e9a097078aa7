// The host's part of a block: the chain on the other experts, from the store, on the CPU backend.
//
// It owns that backend and a thread pool. Without a pool, ggml starts and ends its threads at every graph, and a step
// has a graph per layer here.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/split_graph.h"
#include "backend/split/thread_pool.h"
#include "core/mask.h"

#include <cstdint>
#include <memory>

namespace spac {

class HostPart {
  public:
    // `share_cores` means that the device computes on the same cores, so waiting threads leave them at once.
    explicit HostPart(bool share_cores);
    HostPart(const HostPart &)             = delete;
    HostPart & operator=(const HostPart &) = delete;

    // Sets the number of threads from the next start() on.
    void set_n_threads(int n_threads);
    // Prepares the thread pool. Call it before the first block of a graph.
    void start();

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

    bool                        share_cores_;
    std::unique_ptr<ThreadPool> pool_; // outlives the backend that computes with it
    ggml_backend_ptr            cpu_;
    int                         n_threads_ = 1;
};

} // namespace spac
