// The pager: which experts are in host memory, for a model whose experts are more than memory holds.
//
// They lie in a mapping of the file, so whatever is touched is right, there or not: the system reads it, piece by
// piece, while whoever touches it waits, and drops what was touched least lately. The pager is advice to it. What is
// about to be read is asked for at once, ahead of the reader, so that the disk always has work; and before the system
// has to drop anything, the pager drops whole experts: those that the device has first, and prompts' before decoding's,
// then the least lately used.
#pragma once

#include "backend/ggml_internals.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

namespace spac {

class Pager {
  public:
    using Weights = std::vector<const ggml_tensor *>; // of a layer, in the order of their use

    // `budget`: bytes of experts that are to be in memory at most.
    explicit Pager(size_t budget);
    ~Pager();
    Pager(const Pager &)             = delete;
    Pager & operator=(const Pager &) = delete;

    // A mapping of the file `fd`, and the part of it that a store has: only there are experts dropped. While loading.
    void add_mapping(const char * data, size_t size, int fd, int64_t offset);
    void add_store(const char * data, size_t size);
    // The mappings are about to go: nothing is done any more.
    void stop();

    // From any thread; none waits for the disk. `layer`: -1 for one that is not in the list; `experts`: distinct.

    // The CPU is about to read these; `counts`: for decoding, which will want them again.
    void want(int layer, const Weights & weights, const std::vector<int32_t> & experts, bool counts);
    // Something will read these, after what is wanted.
    void foresee(int layer, const Weights & weights, const std::vector<int32_t> & experts);
    // The device has this one now.
    void let_go(int layer, int expert);

    size_t budget() const { return budget_; }
    // Bytes of the experts that were asked for and not dropped: what is in memory, unless the system needed some of it.
    size_t held() const;

  private:
    struct Range {
        uintptr_t begin, end;
    };
    struct Mapping {
        Range   at;
        int     fd;
        int64_t offset;
    };
    struct Expert {
        bool     held  = false;
        uint64_t asked = 0; // the clock of then
        uint64_t used  = 0; // for decoding, likewise
    };
    struct Layer {
        Weights             weights;
        std::vector<Expert> experts;
        size_t              expert_bytes = 0;
    };
    struct Held {
        uint64_t used, asked;
        int      layer, expert;
    };

    void    ask(std::deque<Range> & queue, int layer, const Weights & weights, const std::vector<int32_t> & experts);
    Layer & known(int layer, const Weights & weights);
    std::vector<Range> choose_victims();
    void               drop(const Range & range) const;
    void               work();

    const size_t             budget_;
    std::vector<Mapping>     mappings_;
    std::vector<Range>       stores_;
    mutable std::mutex       mutex_;
    std::condition_variable  more_;
    std::deque<Range>        wanted_, foreseen_;
    std::vector<Layer>       layers_;
    uint64_t                 clock_ = 0; // goes on with every call
    size_t                   held_  = 0;
    bool                     stop_  = false;
    std::vector<std::thread> threads_;
};

// Bytes that this process had read from disks and the like so far; 0 where the system does not tell.
uint64_t bytes_from_disk();

} // namespace spac
