// How often drafted tokens are accepted, by position. python/spac/governor/acceptance.py says what it means and has it
// in Python; that is the reference, and results are equal to the bit.
#pragma once

#include <vector>

namespace spac {

struct AcceptanceOptions {
    double steps;    // over which an observation loses two thirds of its weight
    double trials;   // the same, of the long memory, in trials of a position
    double prior;    // trials that a prior counts for
    double recent;   // steps of the window that is compared with what was expected
    double surprise; // standard deviations at which the old evidence no longer holds
    double forget;
};

class Acceptance {
  public:
    Acceptance(int n, double prior, const AcceptanceOptions & options);

    int  n() const { return static_cast<int>(positions_.size()); }
    void age(int steps);
    // 0 <= n_success, n_success + failed <= n().
    bool observe(int n_success, bool failed);
    // Rates and the trials behind them, [n] each.
    void estimate(double * rates, double * trials);

  private:
    struct Position {
        double recent = 0, recent_trials = 0, all = 0, all_trials = 0, expected = 0;
    };

    AcceptanceOptions     options_;
    std::vector<Position> positions_;
    double                pool_, pool_trials_;
    double                weight_ = 1, growth_; // of an observation made now, and how it grows with a step
    bool                  certain_, ever_failed_ = false;
    double                off_ = 0, variance_ = 0; // of the last steps against what was expected of them
};

} // namespace spac
