// The host's part of a block: the chain on the other experts, from the store, on the CPU backend.
//
// It owns that backend and a thread pool of its own: without one, ggml starts and ends its threads at every graph, and
// here a step has a graph per layer.
#pragma once

#include "backend/ggml_internals.h"
#include "backend/split_graph.h"
#include "core/mask.h"

#include <cstdint>

namespace spac {

class HostPart {
  public:
    // `share_cores`: the device computes on the same cores, so that waiting threads leave them at once.
    explicit HostPart(bool share_cores);
    ~HostPart();
    HostPart(const HostPart &)             = delete;
    HostPart & operator=(const HostPart &) = delete;

    // From the next start() on.
    void set_n_threads(int n_threads);
    // Before the first block of a graph.
    void start();

    // Writes the host's ids, -1 where the device computes by the mask (null: nowhere), and returns the number of the
    // host's rows. The graph's ids must be in staging.
    static int select(const SplitBlock & b, const Staging & s, const Mask * mask);
    // Computes these rows into b.host_out, and adds what it took to `ns`. The block's input must be in staging.
    ggml_status compute(const SplitBlock & b, const Staging & s, int n_rows, int64_t & ns);

  private:
    bool              share_cores_;
    ggml_backend_ptr  cpu_;
    ggml_threadpool * pool_      = nullptr;
    int               pool_size_ = 0;
    int               n_threads_ = 1;
};

} // namespace spac
