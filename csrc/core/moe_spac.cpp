#include "core/moe_spac.h"

#include <algorithm>
#include <cmath>

namespace spac {
namespace {

constexpr int32_t level_unit = 1 << 20;
constexpr double  reach      = 0.75;

// Updates the averages of a step's demand by utility level. The levels are those that were known before the step.
void average(const MoeSpacState & s, const MoeSpacStep & step) {
    const int           K = s.n_level;
    std::vector<double> sums(2 * (static_cast<size_t>(K) + 1));
    for (int il = 0; il < s.n_layer; ++il) {
        std::fill(sums.begin(), sums.end(), 0.0);
        double * pairs    = sums.data();
        double * distinct = sums.data() + K + 1;
        for (int e = 0; e < s.n_expert; ++e) {
            const int at = il * s.n_expert + e;
            pairs[s.utility[at]] += step.demand[at];
            distinct[s.utility[at]] += step.demand[at] > 0;
        }
        for (int k = K - 1; k >= 0; --k) {
            pairs[k] += pairs[k + 1];
            distinct[k] += distinct[k + 1];
        }
        for (int side = 0; side < 2; ++side) {
            const double * sum   = sums.data() + side * (K + 1);
            double *       hot   = s.hot + (side * s.n_layer + il) * K;
            double &       total = s.total[side * s.n_layer + il];
            for (int k = 0; k < K; ++k) {
                hot[k] += step.share * (sum[k + 1] / std::max(sum[0], 1.0) - hot[k]);
            }
            total += step.share * (sum[0] - total);
        }
    }
}

void calibrate(double & boundary, double change, double forgetting) {
    if (change > 0) {
        boundary = std::max((1 - forgetting) * boundary + forgetting * change, 1.0);
    }
}

void move_utilities(const MoeSpacState & s, const MoeSpacOptions & options, const MoeSpacStep & step) {
    const double share = std::min(1.0, step.n_verified / options.per_step);
    for (int at = 0; at < s.n_layer * s.n_expert; ++at) {
        s.last[at] += share * (static_cast<double>(step.demand[at]) / step.n_verified - s.last[at]);
        const double change = s.n_level * std::sqrt(s.last[at]) - s.utility[at];
        const bool   rises  = change >= s.up[at] * reach;
        const bool   falls  = !rises && -change >= s.down[at] * reach;
        s.utility[at]       = std::clamp(s.utility[at] + rises - falls, 0, s.n_level) * s.exists[at];
        if (options.adapt) {
            calibrate(s.up[at], change, options.forgetting);
            calibrate(s.down[at], -change, options.forgetting);
        }
    }
}

class Balance {
  public:
    Balance(const MoeSpacState & s, const MoeSpacTimes & times, const MoeSpacStep & step)
        : s_(s), times_(times), K_(static_cast<size_t>(s.n_level)), experts_(s.n_layer * K_), held_(s.n_layer * K_),
          fit_(s.n_pool * K_), drafting_(step.n_drafted * times.draft_token / std::max(1, s.n_layer)) {
        count(step);
        share_out();
    }

    // Returns a layer's threshold tau.
    int solve(int il) const {
        const double *      experts  = experts_.data() + il * K_;
        const double *      held     = held_.data() + il * K_;
        const double *      fit      = fit_.data() + static_cast<size_t>(s_.pool[il]) * K_;
        const double        total[2] = {s_.total[il], s_.total[s_.n_layer + il]};
        std::vector<double> room(5 * K_, 0.0);
        double *            stays[2] = {room.data(), room.data() + K_};
        double *            late[2]  = {room.data() + 2 * K_, room.data() + 3 * K_};
        double *            uploads  = room.data() + 4 * K_;
        for (size_t k = K_; k-- > 0;) {
            const double fitting = experts[k] * fit[k], stay = std::min(held[k], fitting), load = fitting - stay;
            uploads[k] = load + (k + 1 < K_ ? uploads[k + 1] : 0.0);
            for (int side = 0; side < 2; ++side) {
                const double above = k + 1 < K_ ? hot(side, il, k + 1) : 0.0;
                const double each  = (hot(side, il, k) - above) / std::max(experts[k], 1.0);
                stays[side][k]     = each * stay + (k + 1 < K_ ? stays[side][k + 1] : 0.0);
                late[side][k]      = each * load + (k + 1 < K_ ? late[side][k + 1] : 0.0);
            }
        }
        int    best  = 0;
        double least = INFINITY;
        for (size_t k = 0; k < K_; ++k) {
            const double all[2]  = {hot(0, il, k), hot(1, il, k)};
            const double window  = std::max(cpu(il, total, all), times_.gpu_expert[il] * all[1]) + drafting_;
            const double in_time = std::min(window / std::max(times_.upload[il] * uploads[k], 1e-15), 1.0);
            const double on[2]   = {stays[0][k] + in_time * late[0][k], stays[1][k] + in_time * late[1][k]};
            const double off     = std::abs(cpu(il, total, on) - times_.gpu_expert[il] * on[1]);
            if (off < least) {
                least = off;
                best  = static_cast<int>(k);
            }
        }
        return best + 1;
    }

  private:
    double hot(int side, int il, size_t k) const {
        return s_.hot[(side * s_.n_layer + il) * K_ + k] * s_.total[side * s_.n_layer + il];
    }

    double cpu(int il, const double * total, const double * on) const {
        const double pairs = total[0] - on[0], distinct = total[1] - on[1];
        double       time = times_.cpu_pair[il] * pairs + times_.cpu_expert[il] * distinct;
        time += times_.cpu_layer[il] * std::clamp(distinct, 0.0, 1.0);
        return time;
    }

    void count(const MoeSpacStep & step) {
        for (int at = 0; at < s_.n_layer * s_.n_expert; ++at) {
            if (s_.utility[at] > 0 && s_.whole[at / s_.n_expert] == 0) {
                const size_t k = at / s_.n_expert * K_ + static_cast<size_t>(s_.utility[at]) - 1;
                experts_[k] += 1;
                held_[k] += step.slot_of[at] >= 0;
            }
        }
    }

    // Computes the share of each level's experts that fits into a pool's slots. Higher levels take slots first.
    void share_out() {
        std::vector<double> in_pool(fit_.size(), 0.0);
        for (int il = 0; il < s_.n_layer; ++il) {
            for (size_t k = 0; k < K_; ++k) {
                in_pool[static_cast<size_t>(s_.pool[il]) * K_ + k] += experts_[il * K_ + k];
            }
        }
        for (int p = 0; p < s_.n_pool; ++p) {
            double above = 0;
            for (size_t k = K_; k-- > 0;) {
                const double here = in_pool[p * K_ + k];
                fit_[p * K_ + k]  = std::min(std::max(s_.pool_slots[p] - above, 0.0) / std::max(here, 1.0), 1.0);
                above += here;
            }
        }
    }

    const MoeSpacState & s_;
    const MoeSpacTimes & times_;
    size_t               K_;
    std::vector<double>  experts_, held_; // [L, K] experts of each level, and those of them in slots
    std::vector<double>  fit_;            // [P, K] share of a level's experts that fits
    double               drafting_;
};

void plan(const MoeSpacState & s, const MoeSpacStep & step, int32_t * priority) {
    for (int at = 0; at < s.n_layer * s.n_expert; ++at) {
        if (step.demand[at] > 0) {
            s.used[at] = step.number;
        }
        int32_t order = 0;
        if (step.order != nullptr) {
            order = std::clamp(step.order[at], 0, level_unit - 1);
        } else {
            s.count[at] *= step.kept;
            s.count[at] += (1 - step.kept) * std::sqrt(static_cast<double>(step.demand[at]) / step.n_verified);
            order = static_cast<int32_t>(std::min(s.count[at], 1.0) * (level_unit - 1));
        }
        priority[at] = s.utility[at] * level_unit + order;
        if (s.whole[at / s.n_expert] != 0 && s.exists[at] != 0) {
            priority[at] += (s.n_level + 1) * level_unit;
        }
    }
}

} // namespace

void moe_spac_step(const MoeSpacState & state, const MoeSpacOptions & options, const MoeSpacTimes & times,
                   const MoeSpacStep & step, int32_t * priority, int32_t * threshold, int32_t * tau) {
    average(state, step);
    move_utilities(state, options, step);
    const Balance balance(state, times, step);
    for (int il = 0; il < state.n_layer; ++il) {
        tau[il]       = balance.solve(il);
        threshold[il] = (state.whole[il] == 0 ? tau[il] : state.n_level + 1) * level_unit;
    }
    plan(state, step, priority);
}

} // namespace spac
