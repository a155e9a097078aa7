#include "core/whole_layers.h"

#include "core/round.h"
#include "core/select.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace spac {
namespace {

constexpr int64_t one = 1 << 20; // certainty

double as_chance(int64_t sum) { return static_cast<double>(sum) / one; }

// One pool at one look. Experts are numbered through its M layers: i * N + e.
class Pool {
  public:
    Pool(const WholeState & s, const WholeStep & step, int pool) : s_(s), n_slots_(s.slots_left[pool]) {
        for (int il = 0; il < s.n_layer; ++il) {
            if (s.pool[il] == pool) {
                layers_.push_back(il);
            }
        }
        const auto n = static_cast<size_t>(s.n_expert);
        likely_.resize(layers_.size() * n);
        used_.resize(layers_.size() * n);
        for (size_t i = 0; i < layers_.size(); ++i) {
            const size_t    at     = layers_[i] * n;
            const int32_t * demand = step.demand + at;
            const double *  chance = step.chance + at;
            const uint8_t * exists = s.exists + at;
            int32_t * const likely = likely_.data() + i * n;
            char * const    used   = used_.data() + i * n;
            int             n_pair = 0, n_used = 0;
            n_expert_.push_back(std::accumulate(exists, exists + n, 0));
            most_ = std::max(most_, n_expert_.back());
            for (size_t e = 0; e < n; ++e) {
                likely[e] = std::clamp(static_cast<int32_t>(rounded(chance[e] * one)), 0, static_cast<int32_t>(one));
                n_pair += demand[e];
            }
            for (size_t e = 0; e < n; ++e) {
                used[e] = static_cast<char>((demand[e] > 0 ? 1 : 0) & exists[e]);
                n_used += used[e];
            }
            n_pair_ += n_pair;
            n_used_ += n_used;
        }
    }

    const std::vector<int> & layers() const { return layers_; }
    int                      n_slots() const { return n_slots_; }
    int                      most() const { return most_; }
    int                      n_expert(size_t i) const { return n_expert_[i]; }
    bool                     whole(size_t i) const { return s_.whole[layers_[i]] != 0; }
    int64_t                  n_used() const { return n_used_; }
    int64_t                  n_pair() const { return n_pair_; }
    int                      missing(size_t i) const { return missing_[i]; }

    // Which experts are kept, and which are not: of the layers that are not whole. No more than `n_moves` of these
    // will change sides.
    void part(const int32_t * priority, int n_moves) {
        std::vector<int32_t> worth, chances; // of the experts in question, in order
        std::vector<char>    used;
        for (size_t i = 0; i < layers_.size(); ++i) {
            const int       n     = in_question(i);
            const auto      first = static_cast<std::ptrdiff_t>(i) * s_.n_expert;
            const int32_t * row   = priority + layers_[i] * s_.n_expert;
            worth.insert(worth.end(), row, row + n);
            chances.insert(chances.end(), likely_.begin() + first, likely_.begin() + first + n);
            used.insert(used.end(), used_.begin() + first, used_.begin() + first + n);
        }
        n_kept_         = std::min(worth.size(), static_cast<size_t>(std::max(0, n_slots_)));
        const auto keep = are_largest(worth, n_kept_);
        sum_least(keep, chances, used, std::max(n_kept_ / 4, static_cast<size_t>(most_ * n_moves)));
        missing_.assign(layers_.size(), 0);
        brought_.assign(layers_.size(), 0);
        const char * is_kept = keep.data();
        int32_t *    chance  = chances.data();
        char *       is_used = used.data();
        for (size_t i = 0; i < layers_.size(); ++i) {
            const int n        = in_question(i);
            int       n_others = 0, n_used = 0;
            int64_t   brought = 0;
            for (int e = 0; e < n; ++e) { // of those kept, nothing is left
                const int is_other = 1 - is_kept[e];
                const int each     = chance[e] * is_other;
                n_others += is_other;
                n_used += is_used[e] & is_other;
                brought += each;
                chance[e] = each - is_kept[e];
            }
            is_kept += n;
            chance += n;
            is_used += n;
            missing_[i] = n_others;
            brought_[i] = brought;
            others_     = {others_.likely + brought, others_.used + n_used};
        }
        n_best_         = std::min(keep.size() - n_kept_, static_cast<size_t>(most_));
        const auto best = are_largest(chances, n_best_); // those kept are below all
        for (size_t k = 0; k < best.size(); ++k) {
            if (best[k] != 0) { // few: a branch that is right
                best_ = {best_.likely + chances[k], best_.used + used[k]};
            }
        }
    }

    // Of the `n` least likely that are kept.
    int64_t displaced(int n) const { return sums_[std::min(static_cast<size_t>(n), sums_.size() - 1)]; }

    // How often predictions come true; `seen` [3, 2] moves on.
    std::array<double, 3> ratios(double share, double * seen) const {
        const size_t least  = std::min(n_kept_, std::max(static_cast<size_t>(most_), n_kept_ / 4));
        const Both   now[3] = {{sums_[least], uses_[least]}, others_, best_};

        std::array<double, 3> found = {1.0, 1.0, 1.0};
        for (int k = 0; k < 3; ++k, seen += 2) {
            seen[0] += share * (as_chance(now[k].likely) - seen[0]);
            seen[1] += share * (static_cast<double>(now[k].used) - seen[1]);
            if (seen[0] > 0) {
                found[k] = std::clamp(seen[1] / seen[0], 1.0 / 64, 64.0);
            }
        }
        return found;
    }

    struct Gain {
        double hand_off, all; // in uses
    };

    Gain gain(size_t i, const std::array<double, 3> & ratios, const WholeTimes & times, int pool, double each) const {
        const int32_t * own     = likely_.data() + i * s_.n_expert;
        const int       n       = n_expert_[i];
        double          brought = 0, lost = 0;
        if (whole(i)) {
            const double rate  = rate_of(n, ratios);
            const auto   level = static_cast<int64_t>(rounded(rate / ratios[1]));
            int64_t      below = 0;
            for (int e = 0; e < n; ++e) {
                below += std::max<int64_t>(level - own[e], 0);
            }
            lost = ratios[1] * as_chance(below);
        } else {
            brought = ratios[1] * as_chance(brought_[i]);
            lost    = ratios[0] * as_chance(displaced(missing_[i]));
        }
        const double wanted = as_chance(std::accumulate(own, own + s_.n_expert, int64_t{0}));
        const double saved  = std::max(times.hand_off, 0.0) - times.device_expert[pool] * wanted;
        return {saved / each, saved / each + brought - lost};
    }

  private:
    struct Both {
        int64_t likely = 0, used = 0;
    };

    // Experts of a layer that are kept or not: none of a whole one.
    int in_question(size_t i) const { return whole(i) ? 0 : n_expert_[i]; }

    // Over the least likely 0, 1, ... n of those kept.
    void sum_least(const std::vector<char> & keep, const std::vector<int32_t> & chances, const std::vector<char> & used,
                   size_t n) {
        std::vector<int32_t> kept(n_kept_ + 1), kept_chances(n_kept_);
        size_t               n_found = 0;
        for (size_t k = 0; k < keep.size(); ++k) {
            kept[n_found] = static_cast<int32_t>(k); // overwritten by the next one if it is not kept
            n_found += static_cast<size_t>(keep[k]);
        }
        std::transform(kept.begin(), kept.end() - 1, kept_chances.begin(), [&](int32_t k) { return chances[k]; });
        const auto order = sorted_places(kept_chances);
        n                = std::min(n, n_kept_);
        sums_.assign(n + 1, 0);
        uses_.assign(n + 1, 0);
        for (size_t k = 0; k < n; ++k) {
            sums_[k + 1] = sums_[k] + kept_chances[order[k]];
            uses_[k + 1] = uses_[k] + used[kept[order[k]]];
        }
    }

    // What each of n further slots would bring, in units of 2^-20.
    double rate_of(int n, const std::array<double, 3> & ratios) const {
        double    rate = n_best_ > 0 ? ratios[2] * static_cast<double>(best_.likely) / static_cast<double>(n_best_) : 0;
        const int few  = std::max(1, n / 4);
        if (n_slots_ >= n && sums_.size() > static_cast<size_t>(few)) { // nothing new is worth more than the least kept
            rate = std::min(rate, ratios[0] * static_cast<double>(displaced(few)) / few);
        }
        return rate;
    }

    const WholeState &   s_;
    int                  n_slots_; // that whole layers leave
    std::vector<int>     layers_, n_expert_, missing_;
    std::vector<int32_t> likely_;  // [M, N] chances, in units of 2^-20
    std::vector<int64_t> brought_; // [M] of what is missing
    std::vector<char>    used_;    // [M, N]
    int64_t              n_used_ = 0, n_pair_ = 0;
    int                  most_   = 0; // experts of a layer
    size_t               n_kept_ = 0;
    std::vector<int64_t> sums_, uses_; // of the least likely 0, 1, ... kept, as many as matter
    size_t               n_best_ = 0;  // of the most likely others
    Both                 others_, best_;
};

// Whether all that whole layers of the pool are to have is there.
bool is_loaded(const WholeState & s, const Pool & pool, const int32_t * slot_of) {
    for (size_t i = 0; i < pool.layers().size(); ++i) {
        const int32_t * slots = slot_of + pool.layers()[i] * s.n_expert;
        for (int e = 0; e < pool.n_expert(i) && pool.whole(i); ++e) {
            if (slots[e] < 0) {
                return false;
            }
        }
    }
    return true;
}

int part_of(size_t n, int at_once) { return static_cast<int>((n + at_once - 1) / at_once); }

// One that loses least, between others, so that it can be told from them.
bool try_one(const WholeState & s, const WholeOptions & options, const Pool & pool) {
    if (std::any_of(s.whole, s.whole + s.n_layer, [](uint8_t w) { return w != 0; }) ||
        pool.most() * options.trial > pool.n_slots()) {
        return false;
    }
    int best = -1;
    for (const int il : pool.layers()) {
        if (il > 0 && il < s.n_layer - 1 && (best < 0 || s.gain[il] > s.gain[best])) {
            best = il;
        }
    }
    if (best >= 0) {
        s.whole[best] = 1;
    }
    return best >= 0;
}

// Those that are worth it least, and not all at once: with each, slots are worth less.
bool leave(const WholeState & s, const WholeOptions & options, const Pool & pool, double price) {
    std::vector<size_t> worst;
    for (size_t i = 0; i < pool.layers().size(); ++i) {
        if (pool.whole(i)) {
            worst.push_back(i);
        }
    }
    const auto gain = [&](size_t i) { return s.gain[pool.layers()[i]]; };
    std::stable_sort(worst.begin(), worst.end(), [&](size_t a, size_t b) { return gain(a) < gain(b); });
    worst.resize(part_of(worst.size(), options.at_once));
    bool left = false;
    for (const size_t i : worst) {
        if (gain(i) < -(pool.n_expert(i) * price)) {
            s.whole[pool.layers()[i]] = 0;
            left                      = true;
        }
    }
    return left;
}

// Those that are worth it most, each paying for what those before it have left.
bool join(const WholeState & s, const WholeOptions & options, const Pool & pool, double price,
          const std::vector<Pool::Gain> & now, double ratio) {
    std::vector<size_t> best(pool.layers().size());
    std::iota(best.begin(), best.end(), size_t{0});
    const auto gain = [&](size_t i) { return s.gain[pool.layers()[i]]; };
    std::stable_sort(best.begin(), best.end(), [&](size_t a, size_t b) { return gain(a) > gain(b); });
    int left = pool.n_slots(), taken = 0, joined = 0;
    for (const size_t i : best) {
        const int missing = pool.missing(i);
        if (pool.whole(i) || now[i].hand_off <= 0) {
            continue;
        }
        if (pool.n_expert(i) > left || joined == part_of(pool.layers().size(), options.at_once)) {
            break;
        }
        const int64_t more  = pool.displaced(taken + missing) - pool.displaced(taken) - pool.displaced(missing);
        const double  least = missing * price + options.need * now[i].hand_off;
        if (gain(i) - ratio * as_chance(more) <= least) {
            break;
        }
        s.whole[pool.layers()[i]] = 1;
        left -= pool.n_expert(i);
        taken += missing;
        ++joined;
    }
    return joined > 0;
}

bool look(const WholeState & s, const WholeOptions & options, const WholeTimes & times, const WholeStep & step, int p) {
    Pool pool(s, step, p);
    if (pool.n_used() == 0) {
        return false;
    }
    const double pairs = static_cast<double>(pool.n_pair()) / static_cast<double>(pool.n_used());
    const double each  = times.cpu_expert[p] + times.cpu_pair[p] * pairs;
    if (each <= 0) {
        return false;
    }
    pool.part(step.priority, part_of(pool.layers().size(), options.at_once));
    int32_t * looks = s.looks + 2 * static_cast<size_t>(p);
    ++looks[0];
    ++looks[1];
    const auto   ratios = pool.ratios(std::max(1.0 / looks[0], options.share), s.seen + 6 * static_cast<size_t>(p));
    const double share  = std::max(1.0 / looks[1], options.share);
    std::vector<Pool::Gain> now;
    for (size_t i = 0; i < pool.layers().size(); ++i) {
        now.push_back(pool.gain(i, ratios, times, p, each));
        double & gain = s.gain[pool.layers()[i]];
        gain += share * (now.back().all - gain);
    }
    if (looks[1] < options.looks || !is_loaded(s, pool, step.slot_of)) {
        return false;
    }
    const double price   = times.upload[p] / (each * options.horizon);
    const bool   changed = times.hand_off < 0
                               ? try_one(s, options, pool)
                               : leave(s, options, pool, price) || join(s, options, pool, price, now, ratios[0]);
    if (!changed) {
        return false;
    }
    looks[1]        = 0;
    s.slots_left[p] = s.pool_slots[p];
    for (size_t i = 0; i < pool.layers().size(); ++i) {
        s.slots_left[p] -= pool.whole(i) ? pool.n_expert(i) : 0;
    }
    return true;
}

} // namespace

bool whole_layers_look(const WholeState & state, const WholeOptions & options, const WholeTimes & times,
                       const WholeStep & step) {
    bool changed = false;
    for (int p = 0; p < state.n_pool; ++p) {
        changed = look(state, options, times, step, p) || changed;
    }
    return changed;
}

} // namespace spac
