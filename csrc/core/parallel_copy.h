// A copy by several threads.
#pragma once

#include "core/home_process.h"
#include "core/not_copied.h"

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace spac {

// Threads that each copy a slice of the bytes, beside the caller. They poll for the next copy for a short time after
// each one, and then sleep. Only one thread may call copy() at a time.
class ParallelCopy : NotCopied {
  public:
    // `n_threads` includes the caller. The first copy starts the threads. A thread that the system refuses is left out.
    explicit ParallelCopy(int n_threads);
    ~ParallelCopy();

    int n_threads() const { return n_threads_; }
    // Copies as memcpy() does, and returns when all bytes are there.
    void copy(void * to, const void * from, size_t bytes);

  private:
    void start();
    void work(int index);
    void copy_slice(int index) const;

    HomeProcess              home_;
    int                      n_threads_;
    std::vector<std::thread> threads_;
    std::mutex               mutex_;
    std::condition_variable  wake_;
    std::atomic<uint64_t>    round_{0};
    std::atomic<int>         n_at_work_{0};
    std::atomic<bool>        stop_{false};

    // the copy of the round
    char *       to_    = nullptr;
    const char * from_  = nullptr;
    size_t       bytes_ = 0;
};

} // namespace spac
