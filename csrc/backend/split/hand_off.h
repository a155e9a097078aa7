// The queue of jobs from the thread that launches to the thread that serves the host's parts of blocks, in order.
//
// The device waits at the gate of every job until the job is served, so launching and serving need two threads
// (stream_gate.h). The thread that decodes serves. A helper launches, and sleeps between graphs. The thread that serves
// opens every gate, also after a failure, so the device's waits end. The helper may be inside a driver's call that does
// not return. So the wait for the helper has a deadline (Patience), after which the jobs are cancelled.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/split_graph.h"
#include "core/mask.h"
#include "core/not_copied.h"

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace spac {

// A block that was queued before its mask was chosen. Its row of slot ids must be written before the gate of the
// previous job opens.
struct LateMask {
    SplitBlock * b;
    int32_t *    row;        // [n_expert]
    uint64_t     generation; // number of the slots that it was queued for
};

// The host's part of a block. The device's work up to the mark is queued before it, and later work behind the gate.
struct HostJob {
    SplitBlock *                b = nullptr;
    const Staging *             s = nullptr;
    std::shared_ptr<const Mask> mask; // null: the host computes all rows
    uint64_t                    mark   = 0;
    bool                        counts = false;
    bool                        late   = false; // the mask is chosen at the end of the previous job
};

class HandOff : NotCopied {
  public:
    ~HandOff();
    HandOff() = default;

    // ---- for the thread that serves
    // Makes the helper run `launch`, which pushes jobs. pop() ends when `launch` has returned and all jobs are taken.
    void start(std::function<void()> launch);
    // Waits for the next job, and returns false at the end. Throws Overdue.
    bool pop(HostJob & job);
    // Notes that the job is done and its gate is not open yet. Returns the mask that has to be chosen now, if any.
    std::optional<LateMask> end(const HostJob & job);
    void                    served(const HostJob & job);
    size_t                  n_left();
    // Drops all jobs, also future ones, and ends the helper's waits. Returns the masks that were not chosen, because
    // the device reads their rows when the gates open.
    std::vector<LateMask> cancel();
    // Waits until the helper has returned from `launch`. Returns false if it did not within the deadline.
    bool idle();

    // ---- for the thread that launches
    void push(HostJob job);
    // Leaves the choice of a mask to end() of the last pushed job. Returns false if that job has ended already.
    bool defer(const LateMask & late);
    // Waits if `most` jobs or more are left, until half of `most` are left (a wait at every job would be slow, since a
    // thread takes long to wake). Returns the mark of the last job that was served, or 0 if there was none.
    uint64_t make_room(size_t most);
    bool     cancelled();

  private:
    void work();

    std::mutex              mutex_;
    std::condition_variable started_, pushed_, served_;
    std::function<void()>   launch_;
    std::deque<HostJob>     jobs_;
    // masks with the mark of their previous job
    std::deque<std::pair<uint64_t, LateMask>> deferred_;
    uint64_t                                  pushed_mark_ = 0, ended_mark_ = 0;
    size_t                                    n_left_    = 0; // jobs pushed and not served
    size_t                                    n_awaited_ = 0; // make_room() waits until so few jobs are left
    uint64_t                                  last_      = 0; // mark of the last job that was served
    bool                                      launching_ = false, cancelled_ = false, stop_ = false;
    std::thread                               helper_; // starts with the first graph
};

} // namespace spac
