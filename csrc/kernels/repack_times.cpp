#include "kernels/repack_times.h"

#include "kernels/measuring.h"
#include "kernels/trial_graphs.h"

#include <algorithm>
#include <chrono>
#include <memory>

namespace spac::kernels {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int min_rounds = 3, max_rounds = 9;

// Both forms of one type for one kind of operator. Repacked weights are compared with plain ones in the same round,
// because other programs slow both.
class Race {
  public:
    Race(TrialCpu & cpu, ggml_type type, bool experts, ggml_backend_buffer_type_t repacked)
        : cpu_(cpu), gigabytes_(1e-9 * static_cast<double>(trial_operator_bytes(type))),
          n_operators_(n_trial_operators(type, repacked == nullptr ? 1 : 2)), plain_(type, experts, n_operators_) {
        if (repacked != nullptr) {
            repacked_ = std::make_unique<TrialWeights>(plain_, experts, n_operators_, repacked);
        }
    }

    // Measures one task and writes its times.
    void run(int64_t n_tokens, double seconds, double & plain, double & repacked) const {
        const int64_t    n     = n_tokens == 1 ? n_operators_ : 1;
        const TrialGraph first = TrialGraph(plain_, n, n_tokens);
        const auto second      = repacked_ == nullptr ? nullptr : std::make_unique<TrialGraph>(*repacked_, n, n_tokens);
        const auto end         = Clock::now() + std::chrono::duration<double>(seconds);
        std::vector<double> took, ratios;
        for (int round = 0; round <= min_rounds || (round <= max_rounds && Clock::now() < end); round++) {
            const double mine  = cpu_.seconds_of(first.get());
            const double other = second == nullptr ? mine : cpu_.seconds_of(second->get());
            if (round > 0) { // the first round warms up
                took.push_back(mine);
                ratios.push_back(other / mine);
            }
        }
        plain    = median(took) / (static_cast<double>(n * n_tokens) * gigabytes_);
        repacked = plain * median(ratios);
    }

  private:
    TrialCpu &                    cpu_;
    double                        gigabytes_; // weights of one operator
    int64_t                       n_operators_;
    TrialWeights                  plain_;
    std::unique_ptr<TrialWeights> repacked_;
};

FormTimes time_forms_of(TrialCpu & cpu, ggml_type type, double seconds) {
    FormTimes found;
    for (const bool experts : {true, false}) {
        ggml_backend_buffer_type_t repacked = repacked_buffer_type(type, experts);
        const Race                 race(cpu, type, experts, repacked);
        const auto                 first = static_cast<size_t>(experts ? Task::experts_of_token : Task::dense_of_token);
        race.run(1, seconds / n_tasks, found.plain[first], found.repacked[first]);
        race.run(trial_prompt, seconds / n_tasks, found.plain[first + 1], found.repacked[first + 1]);
        found.can_repack = found.can_repack || repacked != nullptr;
    }
    return found;
}

} // namespace

int quantized_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; i++) {
        const auto   type = static_cast<ggml_type>(i);
        const auto * cpu  = ggml_get_type_traits_cpu(type);
        if (ggml_is_quantized(type) && name == ggml_type_name(type) && cpu->vec_dot != nullptr &&
            trial_elements % ggml_blck_size(type) == 0) {
            return i;
        }
    }
    return -1;
}

bool can_repack(int type) {
    const auto it = static_cast<ggml_type>(type);
    return repacked_buffer_type(it, true) != nullptr || repacked_buffer_type(it, false) != nullptr;
}

MeasuredForms time_forms(const std::vector<int> & types, int n_threads, double seconds) {
    TrialCpu      cpu(n_threads);
    MeasuredForms measured;
    for (const int type : types) {
        measured.times.push_back(time_forms_of(cpu, static_cast<ggml_type>(type), seconds));
    }
    measured.running = cpu.running();
    return measured;
}

} // namespace spac::kernels
