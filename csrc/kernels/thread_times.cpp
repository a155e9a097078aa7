#include "kernels/thread_times.h"

#include "kernels/measuring.h"
#include "kernels/trial_graphs.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace spac::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int min_rounds = 3, max_rounds = 15;

} // namespace

MeasuredThreads time_threads(int type, const std::vector<int> & n_threads, double seconds) {
    const auto         it          = static_cast<ggml_type>(type);
    const int64_t      n_operators = n_trial_operators(it, 1);
    const TrialWeights weights(it, true, n_operators);
    const TrialGraph   graph(weights, n_operators, 1);

    std::vector<std::unique_ptr<TrialCpu>> cpus;
    for (const int n : n_threads) {
        cpus.push_back(std::make_unique<TrialCpu>(n));
    }
    // A number of threads is compared with the first one in the same round, because other programs slow both.
    std::vector<double>              first;
    std::vector<std::vector<double>> ratios(cpus.size());
    const auto                       end = Clock::now() + std::chrono::duration<double>(seconds);
    for (int round = 0; round <= min_rounds || (round <= max_rounds && Clock::now() < end); round++) {
        double of_first = 0;
        for (size_t i = 0; i < cpus.size(); i++) {
            const double took = cpus[i]->seconds_of(graph.get());
            of_first          = i == 0 ? took : of_first;
            if (round > 0) { // the first round warms up
                ratios[i].push_back(took / of_first);
            }
        }
        if (round > 0) {
            first.push_back(of_first);
        }
    }
    MeasuredThreads measured{{}, 1};
    for (size_t i = 0; i < cpus.size(); i++) {
        measured.seconds.push_back(median(first) * median(ratios[i]));
        measured.running = std::min(measured.running, cpus[i]->running());
    }
    return measured;
}

} // namespace spac::kernels
