// ggml's thread pools, made in one way: which CPUs their threads run on, and how long they wait for the next graph.
//
// Without a pool that stays, ggml starts and ends its threads at every graph on the CPU.
#pragma once

#include "core/home_process.h"

#include <cstdint>
#include <memory>
#include <vector>

struct ggml_threadpool;

namespace spac {

// Where the threads of pools run.
struct Placing {
    std::vector<int> cpus;           // numbers of CPUs, the best ones first; empty: the system decides
    bool             strict = false; // each thread has one of them for itself; else each may use any of them
};

// Sets where threads run of pools that are made from now on, in the whole process.
void    set_placing(Placing placing);
Placing placing();

// Owns a pool. Its threads are those beside the thread that computes a graph, which is the caller's own.
//
// ggml gives the mask of a pool to the thread that makes it, too, and keeps it there. That thread belongs to the
// application: the constructor gives its own mask back. A pool that was paused would set the mask again at its next
// graph, so these never are.
class ThreadPool {
  public:
    // `n_threads`: with the caller's own. `poll`: how long threads look for the next graph before they sleep, 0 to 100
    // as in ggml; 1 is some hundred microseconds to a few milliseconds. Throws MemoryError when there is no pool.
    ThreadPool(int n_threads, uint32_t poll);
    // Ends the threads. No graph may use the pool any more. In a child process after a fork nothing is freed: the
    // threads are not there.
    ~ThreadPool();
    ThreadPool(const ThreadPool &)             = delete;
    ThreadPool & operator=(const ThreadPool &) = delete;

    ggml_threadpool * get() const { return pool_; }
    int               n_threads() const { return n_threads_; }

  private:
    HomeProcess       home_;
    ggml_threadpool * pool_;
    int               n_threads_;
};

} // namespace spac
