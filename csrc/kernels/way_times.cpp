#include "kernels/way_times.h"

#include "kernels/dense.h"
#include "kernels/measuring.h"

#include "ggml-cpu.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

namespace spac::kernels {
namespace {

using Clock = std::chrono::steady_clock;

// Half of a trial's weights have long rows, as a layer's first matrices have, and half have short ones, as its last
// has. Their numbers are about those that a thread gets in one piece.
struct Shape {
    int64_t n, n_weights;
};
constexpr Shape  shapes[]  = {{2048, 384}, {768, 1024}};
constexpr size_t most_rows = 1024; // of weights, of these

constexpr int    min_rounds = 3, max_rounds = 15;
constexpr size_t least_memory = size_t{16} << 20; // bytes of a thread: more than a core's own caches

// Returns the bytes of memory for each thread. All of them together are more than the cache that they share.
size_t memory_of_thread(int n_threads) {
    return std::max(least_memory, 2 * shared_cache() / static_cast<size_t>(n_threads));
}

// Rows of input of either shape, which all threads read, one behind another. They are quantized to the type that the
// weights are multiplied with.
struct Inputs {
    std::vector<char> rows[std::size(shapes)];

    explicit Inputs(ggml_type type) {
        const ggml_type  to = ggml_get_type_traits_cpu(type)->vec_dot_type;
        std::minstd_rand random(1);
        for (size_t k = 0; k < std::size(shapes); k++) {
            std::vector<float> row(static_cast<size_t>(shapes[k].n));
            const size_t       bytes = ggml_row_size(to, shapes[k].n);
            rows[k].resize(max_inputs * bytes);
            for (int i = 0; i < max_inputs; i++) {
                for (float & x : row) {
                    x = static_cast<float>(static_cast<int>(random() % 2001) - 1000) * .003F;
                }
                char * const begin = rows[k].data() + static_cast<size_t>(i) * bytes;
                ggml_get_type_traits_cpu(to)->from_float(row.data(), begin, shapes[k].n);
            }
        }
    }
};

// One thread's weights of one type, and its results.
class Worker {
  public:
    Worker(ggml_type type, const Inputs & inputs, std::vector<char> & memory)
        : type_(type), inputs_(inputs), memory_(memory), results_(max_inputs * most_rows) {
        fill(memory_.data(), memory_.size(), some_blocks(type));
    }

    // Returns the seconds that `compute` takes for one trial, with weights that were not read lately.
    template <typename Compute> double run(const Compute & compute, int n_inputs) {
        if (at_ + trial_bytes(type_) > memory_.size()) {
            at_ = 0;
        }
        const auto start = Clock::now();
        for (size_t k = 0; k < std::size(shapes); k++) {
            multiply(compute, n_inputs, shapes[k], inputs_.rows[k]);
        }
        return std::chrono::duration<double>(Clock::now() - start).count();
    }

  private:
    template <typename Compute>
    void multiply(const Compute & compute, int n_inputs, Shape shape, const std::vector<char> & rows) {
        const size_t stride = ggml_row_size(type_, shape.n);
        const void * input[max_inputs];
        float *      result[max_inputs];
        for (size_t i = 0; i < static_cast<size_t>(n_inputs); i++) {
            input[i]  = rows.data() + i * (rows.size() / max_inputs);
            result[i] = results_.data() + i * most_rows;
        }
        compute({shape.n, memory_.data() + at_, stride, shape.n_weights, input, result, n_inputs});
        at_ += stride * static_cast<size_t>(shape.n_weights);
    }

    ggml_type           type_;
    const Inputs &      inputs_;
    std::vector<char> & memory_;
    std::vector<float>  results_;
    size_t              at_ = 0;
};

// Returns the time for which this thread ran.
double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// The trials of all threads for one type and one number of rows of input. A way is compared with ggml's in the same
// round, because other programs slow both.
struct Trials {
    std::vector<double> seconds;        // of ggml's way
    std::vector<double> ratios[n_ways]; // of each other way's seconds to ggml's
    std::vector<double> dense_ratios;   // of those of ggml's kernels for dense matrices

    double median_of(size_t way) const { return median(seconds) * (way == 0 ? 1 : median(ratios[way])); }
};

// A measurement on which all threads work.
class Race {
  public:
    Race(const std::vector<int> & types, int n_threads, double seconds)
        : n_threads_(n_threads), seconds_(seconds), trials_(types.size()) {
        for (const int type : types) {
            types_.push_back(static_cast<ggml_type>(type));
            inputs_.emplace_back(types_.back());
        }
    }

    // Does one thread's part.
    void run() {
        try {
            std::vector<char> memory(memory_of_thread(n_threads_));
            const auto        start = Clock::now();
            const double      cpu   = cpu_seconds();
            for (size_t i = 0; i < types_.size(); i++) {
                run_rounds(i, memory);
            }
            const double          wall = std::chrono::duration<double>(Clock::now() - start).count();
            const std::lock_guard lock(mutex_);
            running_ = std::min(running_, (cpu_seconds() - cpu) / wall);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            fault_ = std::current_exception();
        }
    }

    Measured found() {
        if (fault_) {
            std::rethrow_exception(fault_);
        }
        Measured                measured{std::vector<WayTimes>(trials_.size()), running_};
        std::vector<WayTimes> & all = measured.times;
        for (size_t i = 0; i < all.size(); i++) {
            for (size_t n = 0; n < max_inputs; n++) {
                const Trials & trials = trials_[i][n];
                for (size_t way = 0; way < n_ways; way++) {
                    all[i].ways[n][way] = trials.median_of(way);
                }
                all[i].dense[n] = median(trials.seconds) * median(trials.dense_ratios);
            }
        }
        return measured;
    }

  private:
    // Measures every number of rows of input in turns, and for each of them every way in turns.
    void run_rounds(size_t i, std::vector<char> & memory) {
        Worker     worker(types_[i], inputs_[i], memory);
        const auto end = Clock::now() + std::chrono::duration<double>(seconds_);
        for (int round = 0; round <= min_rounds || (round <= max_rounds && Clock::now() < end); round++) {
            for (int n = 1; n <= max_inputs; n++) {
                run_round(worker, types_[i], n, round == 0 ? nullptr : &trials_[i][n - 1]);
            }
        }
    }

    // Measures one round. The first one warms up, and is not noted.
    void run_round(Worker & worker, ggml_type type, int n, Trials * noted) {
        const Kernel & kernel = trusted_kernel(type);
        const double   ggml   = worker.run([&](const Rows & rows) { multiply_by_pairs(rows, type); }, n);
        for (size_t way = 1; way < n_ways; way++) {
            if (kernel.dot[way] == nullptr) {
                continue;
            }
            const double took = worker.run(kernel.dot[way], n);
            if (noted != nullptr) {
                const std::lock_guard lock(mutex_);
                noted->ratios[way].push_back(took / ggml);
            }
        }
        if (n > 1 && dense_kernels(type) == Dense::equal) {
            const double took = worker.run([&](const Rows & rows) { multiply_dense(rows, type); }, n);
            if (noted != nullptr) {
                const std::lock_guard lock(mutex_);
                noted->dense_ratios.push_back(took / ggml);
            }
        }
        if (noted != nullptr) {
            const std::lock_guard lock(mutex_);
            noted->seconds.push_back(ggml);
        }
    }

    int                                         n_threads_;
    double                                      seconds_;
    std::vector<ggml_type>                      types_;
    std::vector<Inputs>                         inputs_;
    double                                      running_ = 1;
    std::exception_ptr                          fault_;
    std::mutex                                  mutex_; // guards all that threads write
    std::vector<std::array<Trials, max_inputs>> trials_;
};

} // namespace

size_t trial_bytes(int type) {
    size_t sum = 0;
    for (const Shape & it : shapes) {
        sum += ggml_row_size(static_cast<ggml_type>(type), it.n) * static_cast<size_t>(it.n_weights);
    }
    return sum;
}

Measured time_ways(const std::vector<int> & types, int n_threads, double seconds) {
    Race                     race(types, n_threads, seconds);
    std::vector<std::thread> threads;
    try {
        for (int i = 1; i < n_threads; i++) {
            threads.emplace_back([&] { race.run(); });
        }
    } catch (const std::system_error &) { // there are no more threads: those that exist are enough
    }
    race.run();
    for (std::thread & it : threads) {
        it.join();
    }
    return race.found();
}

} // namespace spac::kernels
