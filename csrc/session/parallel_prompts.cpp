// Prompts of several sequences: pieces of them, in decodes of their own.
#include "session/parallel_impl.h"

#include <algorithm>
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

} // namespace spac
