#include "core/acceptance.h"

#include "core/error.h"

#include <algorithm>
#include <cmath>

namespace spac {

Acceptance::Acceptance(int n, double prior, const AcceptanceOptions & options)
    : options_(options), positions_(static_cast<size_t>(n)), pool_(options.prior * prior), pool_trials_(options.prior),
      growth_(1.0 / (1.0 - 1.0 / options.steps)), certain_(prior == 1.0) {
    for (Position & position : positions_) {
        position.expected = prior;
    }
}

void Acceptance::age(int steps) {
    weight_ *= std::pow(growth_, steps);
    if (weight_ > 1e100) {
        const double scale = 1 / weight_;
        for (Position & position : positions_) {
            position.recent *= scale;
            position.recent_trials *= scale;
        }
        weight_ = 1.0;
    }
}

bool Acceptance::observe(int n_success, bool failed) {
    SPAC_CHECK(n_success >= 0 && n_success + static_cast<int>(failed) <= n(), n_success, n());
    age(1);
    ever_failed_      = ever_failed_ || failed;
    const double keep = 1 - 1 / options_.trials;
    for (int j = 0; j < n_success + static_cast<int>(failed); ++j) {
        Position &   position = positions_[static_cast<size_t>(j)];
        const double success = j < n_success ? 1.0 : 0.0, p = position.expected;
        off_ += success - p;
        variance_ += p * (1 - p);
        position.recent += success * weight_;
        position.recent_trials += weight_;
        position.all        = position.all * keep + success;
        position.all_trials = position.all_trials * keep + 1;
        pool_               = pool_ * keep + success;
        pool_trials_        = pool_trials_ * keep + 1;
    }
    const bool surprised = off_ * off_ > options_.surprise * options_.surprise * (variance_ + 0.25);
    if (surprised) {
        weight_ *= options_.forget;
        off_ = variance_ = 0.0;
    } else {
        off_ *= 1 - 1 / options_.recent;
        variance_ *= 1 - 1 / options_.recent;
    }
    return surprised;
}

void Acceptance::estimate(double * rates, double * trials) {
    if (certain_ && !ever_failed_) {
        std::fill(rates, rates + n(), 1.0);
        std::fill(trials, trials + n(), options_.prior);
        return;
    }
    const double pool = options_.prior * pool_ / pool_trials_;
    for (Position & position : positions_) {
        const double prior = (position.all + pool) / (position.all_trials + options_.prior);
        const double count = position.recent_trials / weight_ + options_.prior;
        position.expected  = (position.recent / weight_ + options_.prior * prior) / count;
        *rates++           = position.expected;
        *trials++          = count;
    }
}

} // namespace spac
