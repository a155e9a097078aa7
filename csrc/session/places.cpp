#include "session/places.h"

#include "../src/llama-context.h" // for kv_unified, which no public function returns
#include "core/error.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

namespace {

// The fewest tokens that are worth sharing with another sequence.
constexpr int worth_sharing = 32;
// A parked sequence comes back when so many more tokens than its own fit, so that it can go on for a while.
constexpr int parked_margin = 64;

} // namespace

bool shares_cells(llama_context * ctx) { return ctx->get_cparams().kv_unified || llama_n_seq_max(ctx) == 1; }

Places::Places(llama_context * ctx) : unified_(shares_cells(ctx)), capacity_(static_cast<int>(llama_n_ctx(ctx))) {
    for (size_t i = 0; i < llama_n_seq_max(ctx); ++i) {
        places_.push_back(std::make_unique<Place>(ctx, i));
    }
}

int Places::n_joined() const {
    return static_cast<int>(
        std::count_if(places_.begin(), places_.end(), [](const auto & place) { return !place->is_free(); }));
}

Place & Places::of(int id) const {
    for (const auto & each : places_) {
        if (id >= 0 && each->id == id) {
            return *each;
        }
    }
    throw InputError("there is no sequence " + std::to_string(id) + " here");
}

Place & Places::choose(const llama_tokens & wanted) const {
    Place * best = nullptr;
    int     most = 0;
    for (const auto & each : places_) {
        if (!each->is_free()) {
            continue;
        }
        const int n = each->target.usable(wanted, static_cast<int>(wanted.size()));
        if (best == nullptr || n > most || (n == most && is_older(each.get(), best))) {
            best = each.get();
            most = n;
        }
    }
    if (best == nullptr) {
        throw InputError("all " + std::to_string(places_.size()) + " sequences are in use: one has to leave first");
    }
    return *best;
}

void Places::share(Place & place, const llama_tokens & wanted) const {
    if (!unified_) {
        return;
    }
    const int       size   = static_cast<int>(wanted.size());
    int             n_most = place.target.usable(wanted, size) + worth_sharing;
    const Context * source = nullptr;
    for (const auto & each : places_) {
        if (each.get() != &place && each->target.usable(wanted, size) >= n_most) {
            n_most = each->target.usable(wanted, size) + 1;
            source = &each->target;
        }
    }
    if (source != nullptr) {
        place.target.share(*source, n_most - 1);
    }
}

// Returns the tokens in the memory. Cells that sequences share count for each of them.
int Places::n_used() const {
    int n = 0;
    for (const auto & each : places_) {
        n += each->target.n_past();
    }
    return n;
}

bool Places::make_room(Place & place, int n_tokens) {
    while (!fits(n_tokens)) {
        Place * found = nullptr;
        for (const auto & each : places_) {
            if (each.get() == &place || each->target.n_past() == 0) {
                continue;
            }
            const bool better = found == nullptr || (each->is_free() && !found->is_free()) ||
                                (each->is_free() == found->is_free() && each->is_free() == is_older(each.get(), found));
            found = better ? each.get() : found;
        }
        if (found == nullptr || (!found->is_free() && is_older(found, &place))) {
            return false;
        }
        release(*found);
    }
    return true;
}

// Empties the memory of a sequence. One that has not left is kept in host memory.
void Places::release(Place & place) {
    if (!place.is_free()) {
        place.past   = place.target.remember();
        place.parked = true;
    }
    place.target.clear();
    if (place.is_free()) {
        place.sequence.clear();
    }
}

void Places::drop_overflow() {
    if (std::none_of(places_.begin(), places_.end(), [](const auto & each) { return each->target.has_overflowed(); })) {
        return;
    }
    std::vector<Remembered> kept;
    for (const auto & each : places_) {
        kept.push_back(each->target.remember());
    }
    llama_memory_clear(llama_get_memory(places_.front()->target.get()), true);
    for (size_t i = 0; i < places_.size(); ++i) {
        places_[i]->target.recall(std::move(kept[i]));
        if (places_[i]->is_free()) {
            places_[i]->sequence.begin_from_memory();
        }
    }
}

void Places::come_back(Place & place) {
    const int n_wanted = place.sequence.n_history() + parked_margin;
    if (!make_room(place, std::min(n_wanted, capacity_))) {
        place.waits = true;
        return;
    }
    place.target.recall(std::exchange(place.past, Remembered()));
    place.parked = false;
}

} // namespace spac
