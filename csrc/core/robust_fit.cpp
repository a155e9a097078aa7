#include "core/robust_fit.h"

#include "core/error.h"
#include "core/sums.h"

#include <algorithm>
#include <cmath>

namespace spac {

RobustFit::RobustFit(std::vector<double> units, const RobustOptions & options)
    : options_(options), units_(std::move(units)), a_(units_.size() * units_.size()), b_(units_.size()) {
    for (double & unit : units_) {
        unit = std::max(unit, options.least_s);
    }
}

double RobustFit::predict(const std::vector<double> & amounts) const {
    if (amounts.size() != units_.size()) {
        throw InputError("there must be an amount for every unit");
    }
    double total = 0;
    for (size_t i = 0; i < units_.size(); ++i) {
        total += units_[i] * amounts[i];
    }
    return total;
}

void RobustFit::observe(const std::vector<double> & amounts, double seconds) {
    const double expected = predict(amounts);
    if (expected <= 0 || seconds <= 0) {
        return;
    }
    if (latest_.size() == static_cast<size_t>(options_.window)) {
        latest_.erase(latest_.begin());
    }
    latest_.emplace_back(amounts, seconds);
    if (latest_.size() < static_cast<size_t>(options_.needed)) {
        return;
    }
    std::vector<double> ratios;
    for (const auto & [row, time] : latest_) {
        ratios.push_back(time / predict(row));
    }
    const double usual = expected * median(ratios), reach = options_.reach;
    const double off     = std::max({1.0, seconds / usual / reach, usual / seconds / reach});
    const bool   is_calm = 1 / options_.surprise < usual / expected && usual / expected < options_.surprise;
    take(amounts, std::min(std::max(seconds, usual / reach), usual * reach), std::pow(off * usual, -2.0),
         is_calm ? options_.kept : options_.kept_in_surprise);
}

void RobustFit::take(const std::vector<double> & row, double seconds, double weight, double kept) {
    const size_t n     = units_.size();
    double       above = 0, below = 0;
    for (size_t i = 0; i < n; ++i) {
        const double weighted = weight * row[i];
        b_[i]                 = kept * b_[i] + weighted * seconds;
        for (size_t j = 0; j < n; ++j) {
            double & sum = a_[i * n + j];
            sum          = kept * sum + weighted * row[j];
            below += units_[i] * sum * units_[j];
        }
        above += units_[i] * b_[i];
    }
    if (below <= 0 || above <= 0) {
        return;
    }
    for (double & unit : units_) {
        unit = unit * above / below;
    }
    for (size_t i = 0; i < n; ++i) {
        const double * sums = a_.data() + i * n;
        if (sums[i] > 0) {
            double rest = 0;
            for (size_t j = 0; j < n; ++j) {
                rest += sums[j] * units_[j];
            }
            units_[i] = std::max(units_[i] + (b_[i] - rest) / sums[i], options_.least_s);
        }
    }
}

} // namespace spac
