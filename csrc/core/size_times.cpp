#include "core/size_times.h"

#include "core/error.h"
#include "core/sums.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace spac {
namespace {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double unknown  = std::numeric_limits<double>::quiet_NaN();

// The growing sequence next to the values in weighted least squares: neighbours out of order share their mean.
void make_monotone(std::vector<double> & values, const std::vector<double> & weights) {
    struct Block {
        double mean, weight;
        size_t n;
    };
    std::vector<Block> blocks;
    for (size_t i = 0; i < values.size(); ++i) {
        Block block = {values[i], weights[i], 1};
        while (!blocks.empty() && blocks.back().mean > block.mean) {
            const Block & last = blocks.back();
            block              = {(block.mean * block.weight + last.mean * last.weight) / (block.weight + last.weight),
                                  block.weight + last.weight, block.n + last.n};
            blocks.pop_back();
        }
        blocks.push_back(block);
    }
    auto value = values.begin();
    for (const Block & block : blocks) {
        value = std::fill_n(value, block.n, block.mean);
    }
}

} // namespace

SizeTimes::SizeTimes(int n, const SizeTimesOptions & options)
    : options_(options), sizes_(static_cast<size_t>(n), {{}, infinite, unknown}) {
    SPAC_CHECK(options.kept >= 2 && options.doubt.size() == static_cast<size_t>(options.kept) + 1, options.kept,
               options.doubt.size());
}

size_t SizeTimes::place(int size) const {
    SPAC_CHECK(size >= 1 && size <= n(), size, n());
    return static_cast<size_t>(size) - 1;
}

void SizeTimes::start(std::vector<double> times) {
    times.resize(std::min(times.size(), sizes_.size()));
    before_ = std::move(times);
}

void SizeTimes::add(int size, double seconds, int step, bool passing, double speed) {
    Size & mine = sizes_[place(size)];
    mine.seen   = step;
    mine.speed  = speed;
    if (passing) {
        mine.passing = std::min(mine.passing, seconds);
    } else {
        if (mine.kept.size() == static_cast<size_t>(options_.kept)) {
            mine.kept.erase(mine.kept.begin());
        }
        mine.kept.push_back(seconds);
    }
    if (mine.kept.size() < 2) {
        mine.time = mine.kept.empty() ? mine.passing : std::min(mine.passing, mine.kept[0]);
    } else if (!passing) {
        auto sorted = mine.kept;
        std::sort(sorted.begin(), sorted.end());
        mine.time = sorted[(sorted.size() - 1) / 2];
    }
}

bool SizeTimes::has(int size) const { return !std::isnan(sizes_[place(size)].time); }

void SizeTimes::shift(const double * seconds) {
    for (Size & size : sizes_) {
        for (double & kept : size.kept) {
            kept += *seconds;
        }
        size.passing += *seconds;
        size.time += *seconds++;
    }
}

// The sizes whose times are known, by observations or by times from before.
std::vector<SizeTimes::Known> SizeTimes::known() const {
    std::vector<double> ratios;
    for (size_t i = 0; i < before_.size(); ++i) {
        if (!std::isnan(sizes_[i].time)) {
            ratios.push_back(sizes_[i].time / before_[i]);
        }
    }
    const bool         only_before = !before_.empty() && ratios.empty();
    const double       scale       = ratios.empty() ? 1.0 : median(ratios);
    std::vector<Known> result;
    for (size_t i = 0; i < sizes_.size(); ++i) {
        double time = only_before ? unknown : sizes_[i].time;
        if (std::isnan(time) && i < before_.size()) {
            time = only_before ? before_[i] : scale * before_[i];
        }
        if (!std::isnan(time)) {
            const double weight = sizes_[i].kept.empty() ? 0.5 : static_cast<double>(sizes_[i].kept.size());
            result.push_back({static_cast<double>(i + 1), time, weight});
        }
    }
    return result;
}

void SizeTimes::estimate(const double * extra, double * times) const {
    const auto   points = known();
    const size_t n      = sizes_.size();
    if (points.empty()) {
        std::fill_n(times, n, 0.0);
        return;
    }
    std::vector<double> values, weights;
    for (const Known & point : points) {
        values.push_back(point.time + extra[static_cast<size_t>(point.size) - 1]);
        weights.push_back(point.weight);
    }
    double shortest = infinite;
    for (size_t k = values.size(); k-- > 0;) {
        shortest  = std::min(shortest, values[k]);
        values[k] = std::min(values[k], options_.plausible * shortest);
    }
    make_monotone(values, weights);
    for (size_t k = 0; k < values.size(); ++k) {
        values[k] -= extra[static_cast<size_t>(points[k].size) - 1];
    }
    const double last  = points.back().size;
    double       slope = values[0];
    if (points.size() > 1) {
        slope = (values.back() - values[0]) / (last - points[0].size);
    }
    size_t next = 0; // of the points, the first behind a size
    double most = -infinite;
    for (size_t i = 0; i < n; ++i) {
        const auto size = static_cast<double>(i + 1);
        while (next < points.size() && points[next].size <= size) {
            ++next;
        }
        if (next == 0) {
            times[i] = values[0];
        } else if (next == points.size() || points[next - 1].size == size) {
            times[i] = values[next - 1];
        } else {
            const double rise = (values[next] - values[next - 1]) / (points[next].size - points[next - 1].size);
            times[i]          = rise * (size - points[next - 1].size) + values[next - 1];
        }
        if (size > last) {
            times[i] += std::max(0.0, slope) * (size - last);
        }
        most     = std::max(most, times[i] + extra[i]);
        times[i] = most - extra[i];
    }
}

void SizeTimes::doubt(const double * total, int step, double speed, double * by) const {
    double shortest = infinite;
    for (size_t i = sizes_.size(); i-- > 0;) { // by: for now, the shortest of this and all larger sizes
        shortest = std::min(shortest, std::isnan(sizes_[i].time) ? infinite : sizes_[i].time);
        by[i]    = shortest;
    }
    double below = -infinite;
    for (size_t i = 0; i < sizes_.size(); ++i) {
        const Size & size = sizes_[i];
        const bool   seen = !std::isnan(size.time);
        below             = std::max(below, seen ? total[i] : 0.0);
        if (!seen) {
            const double most = std::isfinite(by[i]) ? options_.most : options_.beyond;
            const double gap  = std::min(1 - below / std::max(total[i], 1e-12), most);
            by[i]             = std::max(i < before_.size() ? options_.most : gap, 0.0);
            continue;
        }
        const double old    = std::sqrt(static_cast<double>(step - size.seen) * options_.aging);
        const bool   is_odd = size.time > options_.plausible * by[i];
        const double held   = is_odd ? options_.most : std::min(options_.most, options_.doubt[size.kept.size()] + old);
        const double slowed = std::min(size.speed / speed, 1.0);
        by[i]               = std::max(1 - (1 - held) * slowed, 0.0);
    }
}

} // namespace spac
