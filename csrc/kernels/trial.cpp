
#include "kernels/rows.h"

#include "ggml-cpu.h"
#include "ggml-cpu/ggml-cpu-impl.h"
#include "ggml-cpu/llamafile/sgemm.h"
#include "ggml.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <ctime>
#include <exception>
#include <functional>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

// A build of ggml may be without it.
#pragma weak llamafile_sgemm

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

constexpr int    min_rounds = 3, max_rounds = 99;
constexpr size_t least_memory = size_t{16} << 20; // bytes of a thread: more than a core's own caches

// Returns the bytes of memory for each thread. All of them together are more than the cache that they share.
size_t memory_of_thread(int n_threads) {
    const auto shared = static_cast<size_t>(std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE)));
    return std::max(least_memory, 2 * shared / static_cast<size_t>(n_threads));
}

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Returns the time for which this thread ran.
double cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Returns the median, or 0 if there are no numbers.
double median(std::vector<double> x) {
    if (x.empty()) {
        return 0;
    }
    const auto middle = x.begin() + static_cast<std::ptrdiff_t>(x.size() / 2);
    std::nth_element(x.begin(), middle, x.end());
    return *middle;
}

// Fills memory with random blocks whose weights are numbers that a model has. Numbers that are subnormal or not finite
// take other times.
void fill(std::vector<char> & memory, ggml_type type) {
    constexpr size_t   wanted = 64;
    const size_t       size   = ggml_type_size(type);
    std::minstd_rand   random(type + 1);
    std::vector<char>  blocks, block(size);
    std::vector<float> values(static_cast<size_t>(ggml_blck_size(type)));
    for (int i = 0; i < 100000 && blocks.size() < wanted * size; i++) {
        for (char & byte : block) {
            byte = static_cast<char>(random() >> 8);
        }
        ggml_get_type_traits(type)->to_float(block.data(), values.data(), ggml_blck_size(type));
        const bool usual = std::all_of(values.begin(), values.end(), [](float x) {
            return x == 0 || (std::fabs(x) > 1e-12F && std::fabs(x) < 1e12F);
        });
        if (usual) {
            blocks.insert(blocks.end(), block.begin(), block.end());
        }
    }
    blocks.resize(std::max(size, blocks.size())); // zeros if there were none
    for (size_t at = 0; at < memory.size(); at += blocks.size()) {
        std::memcpy(memory.data() + at, blocks.data(), std::min(blocks.size(), memory.size() - at));
    }
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
            rows[k].resize(trial_inputs * bytes);
            for (int i = 0; i < trial_inputs; i++) {
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
        : type_(type), inputs_(inputs), memory_(memory), results_(trial_inputs * most_rows) {
        fill(memory_, type);
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
        return seconds_since(start);
    }

  private:
    template <typename Compute>
    void multiply(const Compute & compute, int n_inputs, Shape shape, const std::vector<char> & rows) {
        const size_t stride = ggml_row_size(type_, shape.n);
        const void * input[trial_inputs];
        float *      result[trial_inputs];
        for (size_t i = 0; i < static_cast<size_t>(n_inputs); i++) {
            input[i]  = rows.data() + i * (rows.size() / trial_inputs);
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

// The times of all threads for one type and one number of rows of input. A variant is compared with ggml's in the same
// round, because other programs slow both.
struct Rounds {
    std::vector<double> seconds; // of ggml's variant
    std::vector<double>
        ratios[n_variants + 1]; // of each other variant's seconds to ggml's; the last: dense kernels of ggml

    double median_of(size_t variant) const { return median(seconds) * (variant == 0 ? 1 : median(ratios[variant])); }
};

// A measurement on which all threads work.
class Race {
  public:
    Race(const std::vector<int> & types, int n_threads, double seconds)
        : n_threads_(n_threads), seconds_(seconds), rounds_(types.size()) {
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
                run_type(i, memory);
            }
            const double          share = (cpu_seconds() - cpu) / seconds_since(start);
            const std::lock_guard lock(mutex_);
            running_ = std::min(running_, share);
        } catch (...) {
            const std::lock_guard lock(mutex_);
            fault_ = std::current_exception();
        }
    }

    Measured found() {
        if (fault_) {
            std::rethrow_exception(fault_);
        }
        Measured measured{{}, running_};
        for (const auto & [one, several] : rounds_) {
            TrialTimes times{};
            for (size_t variant = 0; variant < n_variants; variant++) {
                times.one[variant]     = one.median_of(variant);
                times.several[variant] = several.median_of(variant);
            }
            times.dense = several.median_of(n_variants);
            measured.times.push_back(times);
        }
        return measured;
    }

  private:
    // Measures one row of input and several in turns, and every variant in turns. The first round warms up.
    void run_type(size_t i, std::vector<char> & memory) {
        Worker     worker(types_[i], inputs_[i], memory);
        const auto start = Clock::now();
        for (int round = 0; round <= min_rounds || (round <= max_rounds && seconds_since(start) < seconds_); round++) {
            const std::vector<double> one     = run_round(worker, types_[i], 1);
            std::vector<double>       several = run_round(worker, types_[i], 2);
            const std::vector<double> more    = run_round(worker, types_[i], trial_inputs);
            std::transform(several.begin(), several.end(), more.begin(), several.begin(), std::plus<>());
            if (round > 0) {
                note(rounds_[i].first, one);
                note(rounds_[i].second, several);
            }
        }
    }

    void note(Rounds & rounds, const std::vector<double> & took) {
        const std::lock_guard lock(mutex_);
        rounds.seconds.push_back(took[0]);
        for (size_t variant = 1; variant < took.size(); variant++) {
            if (took[variant] > 0) {
                rounds.ratios[variant].push_back(took[variant] / took[0]);
            }
        }
    }

    // Returns the seconds of each variant, and those of ggml's dense kernels; 0 where there is none. It is not inlined,
    // because gcc 12 for -march=rocketlake let a call for one row run another call's code.
    [[gnu::noinline]] static std::vector<double> run_round(Worker & worker, ggml_type type, int n) {
        const Kernel &      kernel = trusted_kernel(type);
        std::vector<double> took(n_variants + 1);
        took[0] = worker.run([&](const Rows & rows) { multiply_by_pairs(rows, type); }, n);
        for (size_t variant = 1; variant < n_variants; variant++) {
            took[variant] = kernel.dot[variant] != nullptr ? worker.run(kernel.dot[variant], n) : 0;
        }
        if (n > 1 && dense_kernels(type) == Dense::equal) {
            took[n_variants] = worker.run([&](const Rows & rows) { multiply_dense(rows, type); }, n);
        }
        return took;
    }

    int                                    n_threads_;
    double                                 seconds_;
    std::vector<ggml_type>                 types_;
    std::vector<Inputs>                    inputs_;
    double                                 running_ = 1;
    std::exception_ptr                     fault_;
    std::mutex                             mutex_;  // guards all that threads write
    std::vector<std::pair<Rounds, Rounds>> rounds_; // for one row of input and for several
};

} // namespace

size_t trial_bytes(int type) {
    size_t sum = 0;
    for (const Shape & it : shapes) {
        sum += ggml_row_size(static_cast<ggml_type>(type), it.n) * static_cast<size_t>(it.n_weights);
    }
    return sum;
}

Measured run_trial(const std::vector<int> & types, int n_threads, double seconds) {
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

bool multiply_dense(const Rows & it, int type) {
    if (llamafile_sgemm == nullptr || it.n_inputs < 2) {
        return false;
    }
    const auto                kind   = static_cast<ggml_type>(type);
    const ggml_type           to     = ggml_get_type_traits_cpu(kind)->vec_dot_type;
    const ggml_compute_params params = {0, 1, 0, nullptr, nullptr, false};
    return llamafile_sgemm(&params, it.n_weights, it.n_inputs, it.n / ggml_blck_size(kind), it.weights,
                           static_cast<int64_t>(it.stride / ggml_type_size(kind)), it.inputs[0],
                           it.n / ggml_blck_size(to), it.results[0], it.results[1] - it.results[0], kind, to,
                           GGML_TYPE_F32);
}

} // namespace spac::kernels
