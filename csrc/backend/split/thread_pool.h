// ggml's thread pools, with the CPUs that their threads run on and the time that these wait for the next graph.
//
// Without a lasting pool, ggml starts and ends its threads at every graph on the CPU.
#pragma once

#include "core/home_process.h"
#include "core/not_copied.h"

#include <cstdint>
#include <memory>
#include <vector>

struct ggml_threadpool;

namespace spac {

// Sets the CPUs for the threads of pools that are made from now on, in the whole process: their numbers, any of which a
// thread may use. Empty: the system decides.
void             set_placing(std::vector<int> cpus);
std::vector<int> placing();

// A pool of threads, which compute a graph together with the thread that calls for it.
//
// ggml also sets the pool's CPU mask for the thread that makes the pool, and leaves it there. That thread belongs to
// the application, so the constructor restores its mask. A pool that was paused would set the mask again at its next
// graph, so these pools are never paused.
class ThreadPool : NotCopied {
  public:
    // `n_threads` includes the caller's thread. `poll` is the time that threads poll for the next graph before they
    // sleep, 0 to 100 as in ggml; 1 is some hundred microseconds to a few milliseconds. Throws MemoryError if ggml
    // cannot make the pool.
    ThreadPool(int n_threads, uint32_t poll);
    // Ends the threads. No graph may use the pool any more. In a child process after a fork it frees nothing, since the
    // threads do not exist there.
    ~ThreadPool();

    ggml_threadpool * get() const { return pool_; }
    int               n_threads() const { return n_threads_; }

  private:
    HomeProcess       home_;
    ggml_threadpool * pool_;
    int               n_threads_;
};

} // namespace spac
