#include "core/slot_table.h"

#include "core/error.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace spac {
namespace {

struct Entry {
    ExpertId id;
    int32_t  priority;
    int      distance; // layers until it runs

    // Orders of heaps. They are total, so that the same table and plan always give the same steps.
    static bool wanted_later(const Entry & a, const Entry & b) {
        return a.priority != b.priority ? a.priority < b.priority : a.follows(b);
    }
    static bool leaves_later(const Entry & a, const Entry & b) {
        return a.priority != b.priority ? a.priority > b.priority : b.runs_further(a);
    }

  private:
    bool follows(const Entry & other) const {
        return distance != other.distance ? distance > other.distance : id.expert > other.id.expert;
    }
    bool runs_further(const Entry & other) const {
        return distance != other.distance ? distance > other.distance : id.expert < other.id.expert;
    }
};

// The slots that a pool can give to wanted experts.
struct Opportunities {
    int                n_free = 0, n_leaving = 0;
    std::vector<Entry> victims; // a heap
    bool               may_evict = true;
};

} // namespace

SlotTable::SlotTable(std::vector<Layer> layers, std::vector<int> pool_slots) : layers_(std::move(layers)) {
    pools_.resize(pool_slots.size());
    for (size_t p = 0; p < pools_.size(); ++p) {
        SPAC_CHECK(pool_slots[p] >= 0, p, pool_slots[p]);
        pools_[p].holder.resize(pool_slots[p]);
        pools_[p].leaving.assign(pool_slots[p], 0);
        pools_[p].free.resize(pool_slots[p]);
        // The free slots are a stack: slot 0 is handed out first.
        std::iota(pools_[p].free.rbegin(), pools_[p].free.rend(), 0);
    }
    slot_of_.reserve(layers_.size());
    for (const Layer & layer : layers_) {
        SPAC_CHECK(layer.pool >= 0 && layer.pool < n_pool(), layer.pool, n_pool());
        slot_of_.emplace_back(layer.n_expert, -1);
    }
}

int SlotTable::n_slots() const {
    int n = 0;
    for (const Pool & pool : pools_) {
        n += static_cast<int>(pool.holder.size());
    }
    return n;
}

int SlotTable::n_held() const {
    int n = 0;
    for (const Pool & pool : pools_) {
        n += static_cast<int>(
            std::count_if(pool.holder.begin(), pool.holder.end(), [](auto & h) { return h.has_value(); }));
    }
    return n;
}

int SlotTable::acquire(ExpertId id) {
    Pool & pool = pools_[layers_[id.layer].pool];
    SPAC_CHECK(slot_of(id) < 0, id.layer, id.expert);
    SPAC_CHECK(!pool.free.empty(), id.layer, id.expert);
    const int slot = pool.free.back();
    pool.free.pop_back();
    pool.holder[slot]             = id;
    slot_of_[id.layer][id.expert] = slot;
    return slot;
}

int SlotTable::evict(ExpertId id) {
    const int slot = slot_of(id);
    SPAC_CHECK(slot >= 0, id.layer, id.expert);
    Pool & pool = pools_[layers_[id.layer].pool];
    pool.holder[slot].reset();
    pool.leaving[slot]            = 1;
    slot_of_[id.layer][id.expert] = -1;
    return slot;
}

void SlotTable::release(int pool, int slot) {
    Pool & p = pools_[pool];
    SPAC_CHECK(p.leaving[slot] && !p.holder[slot], pool, slot);
    p.leaving[slot] = 0;
    p.free.push_back(slot);
}

int SlotTable::distance(int layer, int cursor) const {
    const int n = n_layer();
    return ((layer - cursor) % n + n) % n;
}

std::vector<SlotTable::Action> SlotTable::toward(const Plan & plan, int cursor, const Marks & marks,
                                                 const std::vector<ExpertId> & urgent, const Limits & limits) const {
    SPAC_CHECK(plan.n_layer == n_layer(), plan.n_layer, n_layer());
    const auto marked = [&](ExpertId id, Mark mark) { return !marks.empty() && (marks[id.layer][id.expert] & mark); };
    std::vector<Entry>         wanted;
    std::vector<Opportunities> pools(pools_.size());
    for (int il = 0; il < n_layer(); ++il) {
        for (int e = 0; e < layers_[il].n_expert; ++e) {
            // Slots of the layer that runs now would not be free at once.
            const bool  held  = slot_of_[il][e] >= 0;
            const Entry entry = {{il, e}, plan.of(il, e), distance(il, held ? cursor - 1 : cursor)};
            if (held) {
                if (!marked(entry.id, no_evict)) {
                    pools[layers_[il].pool].victims.push_back(entry);
                }
            } else if (plan.wants(il, e) && !marked(entry.id, no_load)) {
                wanted.push_back(entry);
            }
        }
    }
    for (size_t p = 0; p < pools_.size(); ++p) {
        pools[p].n_free    = static_cast<int>(pools_[p].free.size());
        pools[p].n_leaving = static_cast<int>(std::count(pools_[p].leaving.begin(), pools_[p].leaving.end(), 1));
        std::make_heap(pools[p].victims.begin(), pools[p].victims.end(), Entry::leaves_later);
    }
    // A heap suffices: the whole order is seldom asked for, and this runs between two batches of copies.
    std::make_heap(wanted.begin(), wanted.end(), Entry::wanted_later);

    std::vector<Action> actions;
    size_t              n_loads = 0, n_evictions = 0;
    const auto          more = [&](const Opportunities & pool) {
        return (pool.n_free > 0 && n_loads < limits.loads) || (pool.may_evict && n_evictions < limits.evictions);
    };
    const auto take = [&](const Entry & entry, bool is_urgent) {
        Opportunities & pool = pools[layers_[entry.id.layer].pool];
        if (pool.n_free > 0) {
            --pool.n_free;
            if (n_loads++ < limits.loads) {
                actions.push_back({entry.id, Action::use_free, {}});
            }
        } else if (pool.n_leaving > 0) {
            --pool.n_leaving;
            actions.push_back({entry.id, Action::wait, {}});
        } else if (!pool.victims.empty() && (is_urgent || pool.victims.front().priority < entry.priority)) {
            std::pop_heap(pool.victims.begin(), pool.victims.end(), Entry::leaves_later);
            if (n_evictions++ < limits.evictions) {
                actions.push_back({entry.id, Action::use_evicted, pool.victims.back().id});
            }
            pool.victims.pop_back();
        } else {
            pool.may_evict = false; // all that follow are wanted less
        }
    };
    for (const ExpertId id : urgent) {
        if (slot_of(id) < 0 && !marked(id, no_load)) {
            take({id, 0, 0}, true);
        }
    }
    while (!wanted.empty() && std::any_of(pools.begin(), pools.end(), more)) {
        std::pop_heap(wanted.begin(), wanted.end(), Entry::wanted_later);
        const Entry entry = wanted.back();
        wanted.pop_back();
        if (std::find(urgent.begin(), urgent.end(), entry.id) == urgent.end()) {
            take(entry, false);
        }
    }
    return actions;
}

void SlotTable::check_integrity() const {
    for (size_t p = 0; p < pools_.size(); ++p) {
        const Pool &     pool = pools_[p];
        std::vector<int> seen(pool.holder.size(), 0);
        for (const int slot : pool.free) {
            SPAC_CHECK(slot >= 0 && slot < static_cast<int>(seen.size()), p, slot);
            ++seen[slot];
        }
        for (size_t slot = 0; slot < pool.holder.size(); ++slot) {
            seen[slot] += pool.leaving[slot] + (pool.holder[slot].has_value() ? 1 : 0);
            SPAC_CHECK(seen[slot] == 1, p, slot, seen[slot]);
            if (pool.holder[slot]) {
                const ExpertId id = *pool.holder[slot];
                SPAC_CHECK(slot_of(id) == static_cast<int>(slot), id.layer, id.expert, slot);
                SPAC_CHECK(layers_[id.layer].pool == static_cast<int>(p), id.layer, p);
            }
        }
    }
    for (int il = 0; il < n_layer(); ++il) {
        for (int e = 0; e < layers_[il].n_expert; ++e) {
            const int slot = slot_of_[il][e];
            SPAC_CHECK(slot < 0 || pools_[layers_[il].pool].holder[slot] == (ExpertId{il, e}), il, e, slot);
        }
    }
}

std::vector<int> share_out(int n_slots, const std::vector<SlotTable::Layer> & layers, int n_pool) {
    std::vector<int64_t> experts(n_pool, 0);
    for (const auto & layer : layers) {
        experts[layer.pool] += layer.n_expert;
    }
    const int64_t    total = std::accumulate(experts.begin(), experts.end(), int64_t{0});
    std::vector<int> shares(n_pool, 0);
    if (total == 0) {
        return shares;
    }
    const int64_t                        wanted = std::min<int64_t>(n_slots, total);
    std::vector<std::pair<int64_t, int>> remainders;
    int64_t                              given = 0;
    for (int p = 0; p < n_pool; ++p) {
        shares[p] = static_cast<int>(wanted * experts[p] / total);
        given += shares[p];
        remainders.emplace_back(-(wanted * experts[p] % total), p);
    }
    std::sort(remainders.begin(), remainders.end());
    for (size_t i = 0; given < wanted; ++i, ++given) {
        ++shares[remainders[i % remainders.size()].second];
    }
    return shares;
}

std::vector<int> share_by_room(int n_slots, const std::vector<int> & experts, const std::vector<int> & room) {
    const auto        n_device = experts.size();
    std::vector<int>  shares(n_device, 0);
    std::vector<char> full(n_device, 0);
    while (true) {
        std::vector<SlotTable::Layer> open;
        int                           left = n_slots;
        for (size_t d = 0; d < n_device; ++d) {
            if (full[d]) {
                left -= shares[d];
            } else {
                open.push_back({experts[d], static_cast<int>(d)});
            }
        }
        const std::vector<int> tried = share_out(left, open, static_cast<int>(n_device));
        bool                   fits  = true;
        for (size_t d = 0; d < n_device; ++d) {
            if (!full[d]) {
                shares[d] = std::min(tried[d], room[d]);
                full[d]   = tried[d] > room[d];
                fits      = fits && !full[d];
            }
        }
        if (fits) {
            return shares;
        }
    }
}

int slots_per_tensor(int64_t blocks_per_slot) {
    constexpr int64_t max_blocks = std::numeric_limits<int32_t>::max();
    return static_cast<int>(max_blocks / std::max<int64_t>(1, blocks_per_slot));
}

int most_slots(const std::vector<int> & limits, const std::vector<SlotTable::Layer> & layers) {
    const int            n_pool = static_cast<int>(limits.size());
    std::vector<int64_t> experts(n_pool, 0);
    int64_t              total = 0;
    for (const auto & layer : layers) {
        experts[layer.pool] += layer.n_expert;
        total += layer.n_expert;
    }
    int64_t most = total;
    for (int p = 0; p < n_pool; ++p) {
        if (experts[p] > limits[p]) { // shares differ from the exact ones by less than a slot
            most = std::min(most, (int64_t{limits[p]} + 1) * total / experts[p]);
        }
    }
    const auto too_many = [&](int n) {
        const std::vector<int> shares = share_out(n, layers, n_pool);
        return !std::equal(shares.begin(), shares.end(), limits.begin(), [](int a, int b) { return a <= b; });
    };
    while (most > 0 && too_many(static_cast<int>(most))) {
        --most;
    }
    return static_cast<int>(most);
}

std::vector<CopyRun> copy_runs(const std::vector<int32_t> & slot_of, size_t expert_bytes, size_t copy_bytes) {
    std::vector<CopyRun> runs;
    const int            n        = static_cast<int>(slot_of.size());
    const auto           add_link = [&](int first, int count) {
        if (!runs.empty() && runs.back().slot < 0) {
            runs.back().count += count;
        } else {
            runs.push_back({first, count, -1});
        }
    };
    for (int first = 0, end = 0; first < n; first = end) {
        while (end < n && (slot_of[end] < 0) == (slot_of[first] < 0)) {
            ++end;
        }
        const auto count = static_cast<size_t>(end - first);
        // Copying slots takes a copy for each of them, and one for what follows them over the link.
        if (slot_of[first] < 0 || count * expert_bytes <= (count + 1) * copy_bytes) {
            add_link(first, end - first);
            continue;
        }
        for (int e = first; e < end; ++e) {
            if (e > first && slot_of[e] == slot_of[e - 1] + 1) {
                ++runs.back().count;
            } else {
                runs.push_back({e, 1, slot_of[e]});
            }
        }
    }
    return runs;
}

} // namespace spac
