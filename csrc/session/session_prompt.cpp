#include "session/session_impl.h"

#include <algorithm>
#include <utility>

namespace spac {

namespace {

// A checkpoint is kept so many tokens before a prompt's end. What the prompt has of the coming answer (its opening tag,
// say) is often not there any more when the conversation goes on.
constexpr int tail_tokens = 8;
// The smallest distance between two checkpoints: a nearer one saves nothing.
constexpr int checkpoint_gap = 64;
// The tokens of a piece of several small graphs. Between pieces, a call can be stopped, and its progress is reported.
constexpr int piece_tokens = 2048;

} // namespace

// Evaluates the part of the history that the target's memory lacks, in pieces that both contexts can take.
void Session::Impl::evaluate_prompt(const Progress & progress) {
    prompt_graph.begin();
    has_tail = false;
    while (sequence.n_pending() > 0) {
        interrupt.raise_if_stopped();
        evaluate_piece();
        target.checkpoint(sequence.n_pending() == tail_tokens ? checkpoint_gap : checkpoint_step);
        if (progress) {
            progress(target.n_past(), sequence.n_history());
        }
    }
    if (drafting() != nullptr && !has_begun) {
        speculator->begin(sequence.history(), draft_length.load() > 0);
    }
    has_begun = true;
    if (has_tail) {
        listeners.prompt_tail();
    }
    interrupt.raise_if_stopped();
}

// Evaluates the next image, or text up to the next one.
void Session::Impl::evaluate_piece() {
    const int pos = target.n_past();
    if (const auto image = sequence.pending_image()) {
        SpanScope          scope(*trace, Activity::prefill);
        const auto * const piece = images != nullptr ? images->piece(*image) : nullptr;
        SPAC_CHECK(piece != nullptr, *image);
        target.decode(*piece, *image, interrupt);
        scope.span.count = target.n_past() - pos;
        return;
    }
    while (true) {
        prompt_graph.choose(sequence.n_pending(), listeners.prompt_graph);
        try {
            evaluate_text();
            break;
        } catch (const MemoryError &) {
            if (!prompt_graph.fails()) {
                throw;
            }
        }
    }
    observe(batch, pos);
}

// Evaluates the next piece of text on the target.
void Session::Impl::evaluate_text() {
    const int pos = target.n_past();
    if (drafting() != nullptr) {
        speculator->follow(pos);
    }
    batch.clear();
    sequence.add_pending(batch, next_piece());
    has_tail = experts && listeners.prompt_tail && sequence.n_pending() == batch.size();
    const NotedTail tail(has_tail ? experts.get() : nullptr, NotedTail::route_tokens);
    SpanScope       scope(*trace, Activity::prefill);
    scope.span.count = batch.size();
    target.decode(batch, interrupt);
}

// Returns how many tokens are evaluated at once now, at most.
int Session::Impl::next_piece() const {
    // llama.cpp cuts a batch into graphs of n_ubatch, which is small at first
    const int small    = prompt_graph.small();
    const int n_small  = target.n_ubatch() > small ? small : std::max(small, piece_tokens);
    const int n_wanted = prompt_graph.is_large() ? prompt_graph.tokens() : n_small;
    const int n_held   = std::min(n_wanted, target.n_decode());
    const int n_batch  = drafting() != nullptr ? std::min(n_held, speculator->n_batch()) : n_held;
    const int tail     = sequence.n_history() - tail_tokens;
    const int n_most   = tail - target.n_past();
    return n_most > 0 && target.wants_checkpoint(tail, checkpoint_gap) ? std::min(n_batch, n_most) : n_batch;
}

// Shows the speculator what the target has decoded at `pos`. If that fails, both forget it: otherwise they would be one
// step apart, and stay so.
void Session::Impl::observe(const common_batch & decoded, int pos) {
    if (drafting() == nullptr) {
        return;
    }
    try {
        SpanScope scope(*trace, Activity::observe);
        scope.span.count = decoded.size();
        speculator->observe(decoded);
    } catch (...) {
        target.keep_prefix(target.tokens(), pos);
        throw;
    }
}

} // namespace spac
