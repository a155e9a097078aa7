// Reading rows of weights before they are asked for.
//
// While the device computes what lies before a block, the CPU's threads wait for the router's ids, and memory is idle.
// The threads foretell the block's experts (next_experts.h), and read the rows of those that the CPU will compute, so
// that they lie in the processor's last cache when the ids come. They compute nothing with them, so nothing but time
// can change. Reading ends when the ids have come.
#pragma once

#include "backend/device/ggml_internals.h"
#include "core/not_copied.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

namespace spac {

class EarlyRows : NotCopied {
  public:
    struct Range {
        const char * begin;
        size_t       size; // bytes
    };

    // Throws MemoryError.
    EarlyRows();

    // Reads ranges in their order, with all threads of a CPU backend, until `arrived` returns true or all is read. Any
    // thread calls `arrived`. Returns the number of bytes that were read.
    size_t read(ggml_backend_t cpu, const std::vector<Range> & ranges, const std::function<bool()> & arrived);

  private:
    static void read_part(ggml_tensor * out, const ggml_tensor * in, int ith, int nth, void * early_rows);

    ggml_context_ptr              ctx_;
    ggml_cgraph *                 graph_   = nullptr; // one node, which every thread computes
    const std::vector<Range> *    ranges_  = nullptr; // of the call under way
    const std::function<bool()> * arrived_ = nullptr;
    std::atomic<size_t>           n_read_{0};
};

} // namespace spac
