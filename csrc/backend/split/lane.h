// The CPU's part of a layer by itself, for measurements and tests: threads that read rows early while they wait for a
// device that is not there, and then compute a graph.
#pragma once

#include "core/not_copied.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace spac {

class Lane : NotCopied {
  public:
    // Throws DeviceError and MemoryError.
    explicit Lane(int n_threads);
    ~Lane();

    // Waits for so many seconds and reads ranges (address, bytes) meanwhile. Then computes a ggml_cgraph. Returns the
    // bytes that were read, and the seconds of computing. Throws DeviceError.
    std::pair<size_t, double> run(const std::vector<std::pair<uintptr_t, size_t>> & ranges, double wait_s,
                                  uintptr_t graph);

  private:
    struct Parts;
    std::unique_ptr<Parts> parts_;
};

} // namespace spac
