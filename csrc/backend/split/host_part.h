// The host's part of a block: the chain on the other experts, from the store, on the CPU backend.
//
// It owns that backend and a thread pool of its own: without one, ggml starts and ends its threads at every graph, and
// here a step has a graph per layer.
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
    // `share_cores`: the device computes on the same cores, so that waiting threads leave them at once.
    explicit HostPart(bool share_cores);
    HostPart(const HostPart &)             = delete;
    HostPart & operator=(const HostPart &) = delete;

    // From the next start() on.
    void set_n_threads(int n_threads);
    // Before the first block of a graph.
    void start();

    // The host's part of an execution, whose ids and input are in staging: counts its demand if it counts, chooses the
    // rows that the device does not compute by the mask (null: all), and computes them into b.host_out; the others are
    // zero there, unless there are no rows at all. `wait_ns`: how long ids and input were waited for.
    struct Served {
        int         n_rows;
        ggml_status status;
    };
    Served serve(const SplitBlock & b, const Staging & s, const Mask * mask, bool counts, int64_t wait_ns);
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
