// Reading ahead from a model's file, for a model whose experts are more than memory holds.
//
// They lie in a mapping of the file, so whatever is touched is right, there or not: the system reads it piece by piece,
// while whoever touches it waits, and drops what was touched least lately. What is said here is advice to it: what is
// about to be touched is asked for at once, ahead of the reader, so that the disk always has work; and what the device
// has now may go first.
#pragma once

#include "backend/ggml_internals.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace spac {

class ReadAhead {
  public:
    using Weights = std::vector<const ggml_tensor *>; // of a layer, in the order of their use

    ReadAhead();
    ~ReadAhead();
    ReadAhead(const ReadAhead &)             = delete;
    ReadAhead & operator=(const ReadAhead &) = delete;

    // From any thread; none waits for the disk. `experts`: distinct.

    // The CPU is about to read these. Those that it read in its last steps are taken to be there.
    void want(const Weights & weights, const std::vector<int32_t> & experts);
    // Something will read these, after what is wanted.
    void foresee(const Weights & weights, const std::vector<int32_t> & experts);
    // The device has this one now.
    void let_go(const Weights & weights, int32_t expert);
    // The mappings are about to go: nothing is done any more.
    void stop();

  private:
    struct Range {
        uintptr_t begin, end;
        int       advice;
    };
    struct Layer {
        std::vector<uint64_t> wanted; // by expert: the clock of then, 0 for never
    };

    std::vector<int32_t> not_of_late(const Weights & weights, const std::vector<int32_t> & experts, bool wants);
    void add(std::deque<Range> & queue, const Weights & weights, const std::vector<int32_t> & experts, int advice);
    void work();

    std::mutex                                     mutex_;
    std::condition_variable                        more_;
    std::deque<Range>                              wanted_, foreseen_;
    std::unordered_map<const ggml_tensor *, Layer> layers_;    // by their first weight
    uint64_t                                       clock_ = 0; // executions of layers by the CPU
    bool                                           stop_  = false;
    std::vector<std::thread>                       threads_;
};

// Bytes that this process had read from disks and the like so far; 0 where the system does not tell.
uint64_t bytes_from_disk();

} // namespace spac
