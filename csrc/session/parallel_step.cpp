// A step of several sequences from its turns to its report, and calls of several steps.
#include "session/parallel_impl.h"
#include "session/session_impl.h"

#include <algorithm>
#include <string>
#include <utility>

namespace spac {

namespace {

void add(TokenProbabilities & sum, const TokenProbabilities & next) {
    sum.chosen.insert(sum.chosen.end(), next.chosen.begin(), next.chosen.end());
    sum.top_ids.insert(sum.top_ids.end(), next.top_ids.begin(), next.top_ids.end());
    sum.top.insert(sum.top.end(), next.top.begin(), next.top.end());
}

void add(ExpertCounts & sum, const ExpertCounts & next) {
    sum.activations += next.activations;
    sum.activations_hit += next.activations_hit;
    sum.activations_loaded += next.activations_loaded;
    sum.distinct += next.distinct;
    sum.distinct_hit += next.distinct_hit;
    sum.misses_cpu += next.misses_cpu;
    sum.misses_loaded += next.misses_loaded;
}

void add(SequenceStep & sum, SequenceStep & next) {
    next.tokens.insert(next.tokens.begin(), sum.tokens.begin(), sum.tokens.end());
    next.n_steps += sum.n_steps;
    next.n_drafted += sum.n_drafted;
    next.n_accepted += sum.n_accepted;
    if (sum.probabilities) {
        if (next.probabilities) {
            add(*sum.probabilities, *next.probabilities);
        }
        next.probabilities = std::move(sum.probabilities);
    }
    add(next.experts, sum.experts);
    sum = std::move(next);
}

// Adds the next step of a call. It has the same sequences, in the same order.
void add(ParallelStep & sum, ParallelStep & next) {
    add(sum.batch, next.batch);
    for (size_t i = 0; i < sum.sequences.size(); ++i) {
        add(sum.sequences[i], next.sequences[i]);
    }
    sum.n_prompt += next.n_prompt;
    sum.prefill_ns += next.prefill_ns;
    sum.verified = sum.verified || next.verified;
}

} // namespace

// Returns the places of this step, the oldest first.
PlaceList ParallelSession::Impl::begin_step(const std::vector<Turn> & turns) {
    PlaceList taking;
    for (const auto & turn : turns) {
        auto & place = places.of(turn.id);
        if (std::find(taking.begin(), taking.end(), &place) != taking.end()) {
            throw InputError("sequence " + std::to_string(turn.id) + " has two turns in a step");
        }
        if (turn.draft_length < 0 || turn.draft_length > draft_max) {
            throw InputError("the draft length is " + std::to_string(turn.draft_length) +
                             ", expected a value from 0 to draft_max, " + std::to_string(draft_max));
        }
        if (!place.sequence.has_prompt()) {
            throw InputError("sequence " + std::to_string(turn.id) + " has failed: it can only leave");
        }
        place.draft_length = turn.draft_length;
        taking.push_back(&place);
    }
    std::sort(taking.begin(), taking.end(), is_older);
    for (auto * const place : taking) {
        place->waits  = false;
        place->error  = nullptr;
        place->reason = StopReason::none;
        place->drafted.clear();
        place->accepted.clear();
        place->n_drafted = 0;
        place->experts   = {};
        place->probabilities.reset();
    }
    for (auto * const place : taking) {
        if (place->parked) {
            places.come_back(*place);
        }
    }
    return taking;
}

void ParallelSession::Impl::report(const PlaceList & taking) {
    for (auto * const place : taking) {
        SequenceStep step;
        step.id            = place->id;
        step.tokens        = place->accepted;
        step.n_drafted     = place->n_drafted;
        step.n_accepted    = std::max(0, static_cast<int>(place->accepted.size()) - 1);
        step.n_past        = place->target.n_past();
        step.n_pending     = place->parked ? 0 : place->sequence.n_pending();
        step.n_steps       = place->accepted.empty() ? 0 : 1;
        step.reason        = place->reason;
        step.waits         = place->waits;
        step.error         = place->error;
        step.probabilities = std::move(place->probabilities);
        step.experts       = place->experts;
        result.sequences.push_back(std::move(step));
    }
}

// Makes one step. Returns the places of this step, the oldest first.
PlaceList ParallelSession::Impl::advance(const std::vector<Turn> & turns, int n_prompt) {
    result      = ParallelStep{};
    auto taking = begin_step(turns);
    evaluate_prompts(taking, n_prompt);

    PlaceList ready;
    for (auto * const place : taking) {
        if (place->is_ready() && !place->parked && place->sequence.n_pending() == 0) {
            if (place->sequence.is_full()) {
                place->reason = StopReason::length;
            } else {
                ready.push_back(place);
            }
        }
    }
    if (!ready.empty()) {
        draft(ready);
        interrupt.raise_if_stopped();
        const auto members = find_room(ready);
        if (separate) {
            for (auto * const place : members) {
                verify({place});
            }
        } else if (!members.empty()) {
            verify(members);
        }
        demand.take(result.batch);
        result.verified      = result.batch.n_verified > 0;
        result.batch.n_steps = result.verified ? 1 : 0;
    }
    report(taking);
    if (result.verified && listeners.verify_end) {
        listeners.verify_end(result.batch);
    }
    return taking;
}

// Returns true if a further step has all these places, and nobody has to look at what the last one did.
bool ParallelSession::Impl::goes_on(const PlaceList & taking) const {
    return !taking.empty() && std::all_of(taking.begin(), taking.end(), [](const Place * place) {
        return place->accepted.size() == 1 && place->n_drafted == 0 && place->reason == StopReason::none &&
               place->error == nullptr && !place->waits;
    });
}

const ParallelStep & ParallelSession::step(const std::vector<Turn> & turns, int n_prompt, const StepRun & run) {
    auto &                impl = *impl_;
    const Interrupt::Call call(impl.interrupt);
    impl.interrupt.raise_if_stopped();
    StepTimer    timer(run);
    auto         taking = impl.advance(turns, n_prompt);
    ParallelStep sum    = std::move(impl.result);
    while (timer.goes_on() && !impl.hands_over.load() && impl.goes_on(taking)) {
        taking = impl.advance(turns, 0);
        add(sum, impl.result);
    }
    impl.hands_over.store(false);
    impl.result = std::move(sum);
    return impl.result;
}

} // namespace spac
