// What passes between the thread that launches and the one that serves the host's parts of blocks, in order.
//
// The device waits at the gate of every job until it is served, so the two are never one thread (stream_gate.h): the
// one that decodes serves, and a helper, which sleeps between graphs, launches. Who serves opens every gate, also
// behind a failure: the device never waits for ever. Nor does who serves: the helper may be inside a call of a driver's
// that does not return, so waiting for it has a deadline (patience.h), behind which the jobs are cancelled.
#pragma once

#include "backend/device/ggml_internals.h"
#include "backend/graph/split_graph.h"
#include "core/mask.h"

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

// A block that was queued with a mask yet to be chosen: its row of slot ids is to be written before the gate of the job
// before it opens.
struct LateMask {
    SplitBlock * b;
    int32_t *    row;        // [n_expert]
    uint64_t     generation; // of the slots that it was queued for
};

// The host's part of a block, queued up to its mark, and what follows it queued behind the gate.
struct HostJob {
    SplitBlock *                b = nullptr;
    const Staging *             s = nullptr;
    std::shared_ptr<const Mask> mask; // null: all rows are the host's
    uint64_t                    mark   = 0;
    bool                        counts = false;
    bool                        late   = false; // the mask is chosen at the end of the job before
};

class HandOff {
  public:
    ~HandOff();
    HandOff()                            = default;
    HandOff(const HandOff &)             = delete;
    HandOff & operator=(const HandOff &) = delete;

    // ---- the thread that serves
    // Has the helper run `launch`, which pushes jobs; pop() ends when it has returned and its jobs are taken.
    void start(std::function<void()> launch);
    // The next job, once it is there; false at the end. Throws Overdue.
    bool pop(HostJob & job);
    // The job is done, its gate not open yet: the mask that is to be chosen now, if any.
    std::optional<LateMask> end(const HostJob & job);
    void                    served(const HostJob & job);
    size_t                  n_left();
    // Drops all jobs, those to come too, and has the helper wait for nothing. Returns the masks that nobody chose: the
    // device reads their rows when the gates open.
    std::vector<LateMask> cancel();
    // Waits until the helper has returned from `launch`; false: it did not within the deadline.
    bool idle();

    // ---- the thread that launches
    void push(HostJob job);
    // Leaves the choice to end() of the last job that was pushed; false: too late, it ended already.
    bool defer(const LateMask & late);
    // While `most` jobs or more are left: waits until half of that is (not at every job: a thread takes long to wake).
    // Returns the mark of the last job that was served; 0 when there was none.
    uint64_t make_room(size_t most);
    bool     cancelled();

  private:
    void work();

    std::mutex              mutex_;
    std::condition_variable started_, pushed_, served_;
    std::function<void()>   launch_;
    std::deque<HostJob>     jobs_;
    // by the mark of the job before
    std::deque<std::pair<uint64_t, LateMask>> deferred_;
    uint64_t                                  pushed_mark_ = 0, ended_mark_ = 0;
    size_t                                    n_left_    = 0; // pushed and not served
    size_t                                    n_awaited_ = 0; // who waits for room, waits for so few to be left
    uint64_t                                  last_      = 0; // mark of the last one served
    bool                                      launching_ = false, cancelled_ = false, stop_ = false;
    std::thread                               helper_; // starts with the first graph
};

} // namespace spac
