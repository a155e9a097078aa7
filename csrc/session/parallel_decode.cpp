// Decodes of several sequences: pieces of their prompts; their drafts, one verification, and what each of them samples.
#include "session/parallel_impl.h"
#include "session/token_sampler.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace spac {

void ParallelSession::Impl::evaluate_prompts(const PlaceList & taking, int n_prompt) {
    const auto start = Clock::now();
    while (n_prompt > 0) {
        interrupt.raise_if_stopped();
        const auto members = next_batch(taking, n_prompt);
        if (members.empty()) {
            break;
        }
        std::vector<Tail> tails;
        try {
            tails = evaluate_pieces(members);
        } catch (const Cancelled &) {
            throw;
        } catch (const Error & error) {
            if (dynamic_cast<const MemoryError *>(&error) != nullptr && prompt_graph.fails()) {
                continue; // the pieces are tried again, in smaller graphs
            }
            for (auto * const place : members) {
                place->error = std::current_exception();
            }
        }
        n_prompt -= batch.size();
        for (const auto & tail : tails) {
            experts->show_tail(tail.first, tail.n_tokens);
            listeners.prompt_tail();
        }
        if (!tails.empty()) {
            experts->show_tail(0, 0);
        }
    }
    result.prefill_ns = ns_since(start);
}

// Chooses the size of the next graphs and fills the batch. Returns whose pieces it has.
PlaceList ParallelSession::Impl::next_batch(const PlaceList & taking, int n_prompt) {
    int n_pending = 0;
    for (const auto * const place : taking) {
        n_pending += place->is_ready() && !place->parked ? place->sequence.n_pending() : 0;
    }
    const int n_most = std::min(n_prompt, n_pending);
    return n_most > 0 ? next_pieces(taking, std::min(n_most, prompt_graph.choose(n_most, listeners.prompt_graph)))
                      : PlaceList();
}

// Fills the batch with at most about `n_most` tokens of pending prompts, and returns whose they are. With `separate`,
// these are of one sequence and end where its graphs end, so that they are cut as a Session's.
PlaceList ParallelSession::Impl::next_pieces(const PlaceList & taking, int n_most) {
    batch.clear();
    PlaceList members;
    for (auto * const place : taking) {
        const int n_pending = place->is_ready() && !place->parked ? place->sequence.n_pending() : 0;
        const int n_batch   = place->target.n_decode();
        int       n         = std::min(n_pending, std::min(n_most, n_batch) - batch.size());
        if (separate && n > 0) {
            const int graph = place->target.n_ubatch();
            n               = std::min({n_pending, (n + graph - 1) / graph * graph, n_batch});
        }
        if (n <= 0) {
            continue;
        }
        if (!places.make_room(*place, batch.size() + n)) {
            place->waits = true;
            continue;
        }
        place->sequence.add_pending(batch, n);
        members.push_back(place);
        if (separate) {
            break;
        }
    }
    return members;
}

// Evaluates the batch. Returns the ends of prompts whose routes were noted, the first one first.
std::vector<Tail> ParallelSession::Impl::evaluate_pieces(const PlaceList & members) {
    std::vector<Context *> contexts;
    std::vector<Tail>      tails;
    int                    n_left = batch.size(); // tokens that this prompt and the next ones have in the batch
    for (auto * const place : members) {
        contexts.push_back(&place->target);
        // The batch has all that is pending, but of the last prompt.
        if (const int n = place->sequence.n_pending(); n <= n_left) {
            const int n_shown = std::min(NotedTail::route_tokens, n);
            n_left -= n;
            tails.push_back({n_left + n_shown, n_shown});
        }
    }
    if (!experts || !listeners.prompt_tail) {
        tails.clear();
    }
    {
        const NotedTail tail(experts.get(), tails.empty() ? 0 : tails.front().first);
        SpanScope       scope(*trace, Activity::prefill);
        scope.span.count = batch.size();
        Context::decode(batch, contexts, interrupt);
    }
    result.n_prompt += batch.size();
    for (auto * const place : members) {
        if (drafts) {
            drafts->read(place->index, place->sequence.history(), place->target.n_past());
        }
    }
    return tails;
}

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
