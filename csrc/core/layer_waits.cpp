#include "core/layer_waits.h"

#include "core/sums.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace spac {
namespace {

using Values = std::vector<double>;

double sum(const Values & values) { return pairwise_sum(values.data(), values.size()); }

void learn(const LayerWaitsState & s, double kept, const Values & loss) {
    double least = INFINITY;
    for (int f = 0; f < s.n_factor; ++f) {
        s.loss[f] = s.loss[f] * kept + loss[static_cast<size_t>(f)];
        if (s.loss[f] + s.doubt[f] < least) {
            least   = s.loss[f] + s.doubt[f];
            s.at[0] = f;
        }
    }
}

// A step that the device computed alone.
void observe_total(const LayerWaitsState & s, const LayerWaitsOptions & options, const Values & work, double seconds) {
    const double total = sum(work);
    if (total <= 0 || seconds <= 0) {
        return;
    }
    Values loss;
    for (int f = 0; f < s.n_factor; ++f) {
        loss.push_back(std::min(std::abs(s.factors[f] * total / seconds - 1), options.most));
    }
    learn(s, options.kept, loss);
}

// What layers that were waited for had before: the device's work and the CPU's; and how long the wait after them was.
struct Seen {
    Values work, host, after;
};

// By every factor, how far the waits are from what it says; returns what they have in common by the one that is then
// believed.
double observe_seen(const LayerWaitsState & s, const LayerWaitsOptions & options, const Seen & seen, double usual) {
    const size_t n = seen.work.size();
    Values       common, loss, rest(n), room(n);
    for (int f = 0; f < s.n_factor; ++f) {
        double latest = 0;
        for (size_t i = 0; i < n; ++i) {
            const double late = std::max(s.factors[f] * seen.work[i] - seen.host[i], 0.0);
            rest[i]           = seen.after[i] - late;
            latest            = std::max(latest, late);
        }
        if (f > 0 && latest == 0) { // nor by the one before, which is less
            common.push_back(common.back());
            loss.push_back(loss.back());
            continue;
        }
        room = rest;
        // Where all layers wait for a device with as much to do in each, R and D cannot be told apart.
        common.push_back(std::clamp(median(room), usual / 2, usual * 2));
        for (size_t i = 0; i < n; ++i) {
            room[i] = std::min(std::abs(rest[i] - common.back()) / usual, options.most);
        }
        loss.push_back(sum(room) / static_cast<double>(n));
    }
    learn(s, options.kept, loss);
    return common[static_cast<size_t>(s.at[0])];
}

// Of whole layers between those that were waited for.
void tell_whole(const LayerWaitsStep & step, const Values & late, const Values & work, LayerWaitsTold & told) {
    Values before(1), spared, inside;
    size_t n_whole = 0, last = step.wait.size(); // the last that was waited for; at first none
    for (size_t i = 0; i < step.wait.size(); ++i) {
        if (step.wait[i] > 0) {
            if (last < i && last + 1 < i) {
                const size_t between = i - last - 1;
                spared.push_back(told.usual_s -
                                 (step.wait[i] - late[last] - told.usual_s) / static_cast<double>(between));
                inside.push_back(before[i] - before[last + 1]);
                n_whole += between;
            }
            last = i;
        }
        before.push_back(before.back() + work[i]);
    }
    told.has_whole = n_whole > 0;
    if (told.has_whole) {
        told.spared_s = median(spared);
        told.inside_s = sum(inside) / static_cast<double>(n_whole);
    }
}

} // namespace

LayerWaitsTold observe_waits(const LayerWaitsState & state, const LayerWaitsOptions & options,
                             const LayerWaitsStep & step) {
    const auto     n      = static_cast<size_t>(state.n_layer);
    const double   rest_s = step.total_s - sum(step.host);
    LayerWaitsTold told;
    Values         work(n);
    for (size_t i = 0; i < n; ++i) {
        work[i] = state.each[i] * step.distinct[i];
    }
    if (std::all_of(step.wait.begin(), step.wait.end(), [](double wait) { return wait == 0; })) {
        observe_total(state, options, work, rest_s - step.dense_s);
        return told;
    }
    Seen seen; // a layer is seen from its own ids, which it waited for, to the next layer's
    for (size_t i = 0; i + 1 < n; ++i) {
        if (step.wait[i] > 0 && step.wait[i + 1] > 0) {
            seen.work.push_back(work[i]);
            seen.host.push_back(step.host[i]);
            seen.after.push_back(step.wait[i + 1]);
        }
    }
    if (seen.work.empty()) {
        return told;
    }
    told.waited         = true;
    told.usual_s        = observe_seen(state, options, seen, step.usual_s);
    const double factor = state.factors[state.at[0]];
    Values       late(n);
    for (size_t i = 0; i < n; ++i) {
        late[i] = std::max(work[i] * factor - step.host[i], 0.0);
        work[i] = work[i] * factor / factor;
    }
    told.dense_s = rest_s - sum(late);
    tell_whole(step, late, work, told);
    return told;
}

} // namespace spac
