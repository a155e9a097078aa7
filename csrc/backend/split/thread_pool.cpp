#include "backend/split/thread_pool.h"

#include "core/error.h"
#include "core/not_copied.h"
#include "ggml-cpu.h"

#include <mutex>
#include <string>
#include <utility>

#include <pthread.h>
#include <sched.h>

namespace spac {
namespace {

std::mutex       placing_mutex;
std::vector<int> placing_now;

// The calling thread's CPU mask, which the destructor restores.
class OwnCpus : NotCopied {
  public:
    OwnCpus() : known_(pthread_getaffinity_np(pthread_self(), sizeof(cpus_), cpus_) == 0) {}
    ~OwnCpus() {
        if (known_) {
            pthread_setaffinity_np(pthread_self(), sizeof(cpus_), cpus_);
        }
    }

  private:
    cpu_set_t cpus_[8]; // for 8,192 CPUs, since Linux refuses a set that is smaller than its own
    bool      known_;
};

} // namespace

void set_placing(std::vector<int> cpus) {
    const std::lock_guard lock(placing_mutex);
    placing_now = std::move(cpus);
}

std::vector<int> placing() {
    const std::lock_guard lock(placing_mutex);
    return placing_now;
}

ThreadPool::ThreadPool(int n_threads, uint32_t poll) : n_threads_(n_threads) {
    auto params = ggml_threadpool_params_default(n_threads);
    params.poll = poll;
    for (const int cpu : placing()) {
        if (cpu >= 0 && cpu < GGML_MAX_N_THREADS) {
            params.cpumask[cpu] = true;
        }
    }
    const OwnCpus unchanged;
    pool_ = ggml_threadpool_new(&params);
    if (pool_ == nullptr) {
        throw MemoryError("no memory for a pool of " + std::to_string(n_threads) + " threads");
    }
}

ThreadPool::~ThreadPool() {
    if (home_.is_here()) {
        ggml_threadpool_free(pool_);
    }
}

} // namespace spac
