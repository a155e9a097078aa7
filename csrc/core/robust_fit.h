// Unit times of work that is measured in sums. python/spac/costs/robust.py says what it means and has it in Python;
// that is the reference, and results are equal to the bit.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace spac {

struct RobustOptions {
    double kept;                      // of what is known, after a measurement
    int    window, needed;            // measurements that say what is usual; of them, before anything is believed
    double reach, surprise;           // how far from the usual, as a factor
    double kept_in_surprise, least_s; // of a unit
};

class RobustFit {
  public:
    RobustFit(std::vector<double> units, const RobustOptions & options);

    const std::vector<double> & units() const { return units_; }
    double                      predict(const std::vector<double> & amounts) const;
    void                        observe(const std::vector<double> & amounts, double seconds);

  private:
    void take(const std::vector<double> & row, double seconds, double weight, double kept);

    RobustOptions                                       options_;
    std::vector<double>                                 units_, a_, b_; // a: [n, n]
    std::vector<std::pair<std::vector<double>, double>> latest_;        // the last last
};

} // namespace spac
