// A step of several sequences: their drafts, one verification, and what each of them samples.
#include "session/parallel_impl.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

void ParallelSession::Impl::draft(const PlaceList & taking) {
    const auto                           start = Clock::now();
    std::vector<ParallelDrafts::Request> requests;
    for (auto * const place : taking) {
        const int n = std::min(place->draft_length, place->sequence.draft_room());
        if (drafts && n > 0) {
            requests.push_back({place->index, &place->sequence.history(), place->sequence.last(), n, &place->drafted});
        }
    }
    if (!requests.empty()) {
        SpanScope scope(*trace, Activity::draft);
        try {
            drafts->draft(requests);
        } catch (const Cancelled &) {
            throw;
        } catch (const Error &) {
            for (const auto & each : requests) {
                places[each.index].error = std::current_exception();
            }
        }
        scope.span.count = 0;
        for (const auto & each : requests) {
            scope.span.count += static_cast<int32_t>(each.draft->size());
        }
    }
    result.batch.draft_ns = ns_since(start);
    if (listeners.draft_end) {
        std::vector<int32_t> all;
        for (const auto * const place : taking) {
            all.insert(all.end(), place->drafted.begin(), place->drafted.end());
        }
        listeners.draft_end(all, result.batch.draft_ns, nullptr);
    }
}

// Returns the sequences whose windows fit into the memory. A draft is given up before another sequence is parked.
PlaceList ParallelSession::Impl::find_room(const PlaceList & taking) {
    PlaceList members;
    int       n_held = 0; // tokens of the windows before
    for (auto * const place : taking) {
        if (!place->is_ready() || place->parked) {
            place->waits = place->waits || place->parked;
            continue;
        }
        if (!places.fits(n_held + 1 + static_cast<int>(place->drafted.size()))) {
            place->drafted.clear();
        }
        if (!places.make_room(*place, n_held + 1)) {
            place->waits = true;
            continue;
        }
        n_held += 1 + static_cast<int>(place->drafted.size());
        members.push_back(place);
    }
    return members;
}

// Verifies the windows of all members in one batch, and samples. What fails is each member's error, and leaves the
// sequences as they were.
void ParallelSession::Impl::verify(const PlaceList & members) {
    batch.clear();
    std::vector<Context *> contexts;
    std::vector<int>       windows;
    for (auto * const place : members) {
        place->target.add_window(batch, place->sequence.last(), place->drafted);
        contexts.push_back(&place->target);
        windows.push_back(1 + static_cast<int>(place->drafted.size()));
    }
    if (experts) {
        experts->set_parts(windows);
    }
    const auto start = Clock::now();
    try {
        SpanScope scope(*trace, Activity::verify);
        scope.span.count = batch.size();
        demand.count([&] { Context::decode(batch, contexts, interrupt); }, result.batch);
    } catch (...) {
        if (experts) {
            experts->take_parts();
        }
        for (auto * const place : members) {
            place->sequence.rewind();
        }
        try {
            throw;
        } catch (const Cancelled &) {
            throw;
        } catch (const Error &) {
            for (auto * const place : members) {
                place->error = std::current_exception();
            }
            return;
        }
    }
    result.batch.verify_ns += ns_since(start);
    result.batch.n_verified += batch.size();
    const auto sampling = Clock::now();
    int        row      = 0;
    for (auto * const place : members) {
        sample(*place, row);
        row += 1 + static_cast<int>(place->drafted.size());
    }
    places.drop_overflow();
    const auto counts = experts ? experts->take_parts() : std::vector<ExpertCounts>();
    for (size_t i = 0; i < counts.size(); ++i) {
        members[i]->experts = counts[i];
    }
    result.batch.sample_ns += ns_since(sampling);
}

void ParallelSession::Impl::sample(Place & place, int first_row) {
    try {
        SpanScope scope(*trace, Activity::sample);
        place.accepted   = place.sampler->sample(ctx, place.drafted, first_row);
        scope.span.count = static_cast<int32_t>(place.accepted.size()) - 1;
        place.target.note_logit(first_row + scope.span.count, place.accepted.back());
        if (place.target.has_overflowed()) {
            throw InternalError("the model's logits are no finite numbers");
        }
        if (place.n_top >= 0) {
            place.probabilities = token_probabilities(ctx, place.accepted, place.n_top, first_row);
        }
    } catch (const std::exception &) {
        // The sampler may have taken some of the tokens, so the sequence cannot go on.
        place.accepted.clear();
        place.sequence.rewind();
        place.sequence.drop_prompt();
        place.error = sampler_fault();
        return;
    }
    place.n_drafted = static_cast<int>(place.drafted.size());
    place.reason    = place.sequence.append(place.accepted);
    if (!place.drafted.empty()) {
        drafts->accept(place.index, static_cast<int>(place.accepted.size()) - 1, place.sequence.history());
    }
    auto & sum = result.batch;
    sum.tokens.insert(sum.tokens.end(), place.accepted.begin(), place.accepted.end());
    sum.n_drafted += place.n_drafted;
    sum.n_accepted += static_cast<int>(place.accepted.size()) - 1;
}

} // namespace spac
