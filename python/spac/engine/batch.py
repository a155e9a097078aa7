"""Several generations at once. One thread owns a session of several sequences; readers wait for its steps.

Each generation has a `BatchedSequence`, which its reader waits on.
"""

from __future__ import annotations

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from time import monotonic, perf_counter
from typing import Any

from spac import _core
from spac.config import EngineConfig
from spac.engine.batch_recording import StepMeter
from spac.engine.batched_sequence import BatchedSequence, MemberStep
from spac.engine.between_steps import BetweenSteps
from spac.engine.prompt_cache import cache_parameters
from spac.engine.prompt_graphs import PromptGraphs
from spac.engine.reader import IDLE_S
from spac.engine.session_events import Events
from spac.errors import Cancelled, InputError
from spac.governor import BatchGovernor, Governor
from spac.model.pair import ModelPair

_open: weakref.WeakSet[Batch] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what nobody closed. The interpreter must not end while a thread of a batch is in native code."""
    for each in list(_open):
        each.close()


_PREFILL_SHARE = 0.8  # largest part of the time that prompts take while other sequences decode


class Batch:
    """The thread that runs a session of several sequences."""

    def __init__(
        self,
        session: _core.ParallelSession,
        governor: BatchGovernor,
        between: BetweenSteps,
        *,
        piece: int,
        most: int,
        continuous: bool = True,
        before_join: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread, which closes the session at the end.

        While sequences decode, prompts take `_PREFILL_SHARE` of the time, in pieces of `piece` tokens.
        Otherwise up to `most` prompt tokens are read at once. Unless `continuous`, new sequences wait until
        all others have ended. `before_join` is called before a sequence joins.
        """
        self.lock = threading.RLock()  # The collector may end a dropped generation in a thread that holds it.
        self.work = threading.Condition(self.lock)
        self.session, self.governor, self._between = session, governor, between
        self._piece, self._most = piece, most
        self._continuous, self._before_join = continuous, before_join
        self._waiting: deque[BatchedSequence] = deque()
        self._members: dict[int, BatchedSequence] = {}
        self._closed = False
        self._debt_s = 0.0  # time that decoding gets before prompts are read again
        self.steps = StepMeter()
        """The counts of the steps."""
        self._thread = threading.Thread(target=self._run, name="spac-batch", daemon=True)
        self._thread.start()
        _open.add(self)

    def sequence(
        self, sampling: Mapping[str, Any], *, limit: int | None = None, n_top: int = -1
    ) -> BatchedSequence:
        """Return a new sequence, which joins when its prompt is prefilled.

        `sampling` are a session's sampling parameters. `limit` is the number of tokens that are wanted. With
        `n_top` from 0, its probabilities are kept.
        """
        return BatchedSequence(self, sampling, limit, n_top)

    @property
    def n_sequences(self) -> int:
        """The number of places for sequences."""
        return self.session.n_sequences

    @property
    def n_running(self) -> int:
        """The number of sequences in the session."""
        return len(self._members)

    @property
    def n_waiting(self) -> int:
        """The number of sequences that wait for a place."""
        return len(self._waiting)

    def sequences(self) -> list[BatchedSequence]:
        """Return the sequences in the session, and then those that wait."""
        with self.lock:
            return [*self._members.values(), *self._waiting]

    def enter(self, member: BatchedSequence) -> None:
        """Add a sequence to those that wait. Raise InputError if the engine is closed."""
        with self.lock:
            if self._closed:
                raise InputError("the engine is closed")
            self._waiting.append(member)
            self.interrupt()

    def interrupt(self) -> None:
        """Let the thread look at its sequences, after the step that it makes. Call this with the lock."""
        self.work.notify()
        if not self._closed:
            self.session.hand_over()

    def close(self) -> None:
        """End all sequences and the thread, and close the session. A second call does nothing."""
        with self.lock:
            self._closed = True
            self.work.notify()
        with suppress(InputError):  # The thread may have closed the session.
            self.session.cancel()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._wait():
                with self._between.call():
                    self._turn()
        finally:
            self._end()

    def _wait(self) -> bool:
        """Wait for work. Return False if the batch is closed."""
        with self.lock:
            while not self._has_work():
                self.work.wait(self._end_idle())
            return not self._closed

    def _end_idle(self) -> float | None:
        """End the generation that nobody reads for longest if another one waits for its place.

        Return the seconds until one may have to end, or None if none waits.
        """
        members = self._members.values()
        if not self._waiting or self._may_join or any(each.ended for each in members):
            return None
        idle = [each for each in members if each.full_since is not None]
        if not idle:
            return IDLE_S
        longest = min(idle, key=lambda each: each.full_since or 0.0)
        left_s = (longest.full_since or 0.0) + IDLE_S - monotonic()
        if left_s <= 0:
            self._fail(longest, InputError(
                f"the generation was not read for {IDLE_S:.0f} seconds, and another one waited for its "
                "place: read it to its end, cancel it, or raise --parallel"
            ))  # fmt: skip
        return max(0.0, left_s)

    def _has_work(self) -> bool:
        members = self._members.values()
        return self._closed or any(each.ended or each.wants_step for each in members) or self._may_join

    @property
    def _may_join(self) -> bool:
        if not self._waiting:
            return False
        if self._waiting[0].ended:
            return True
        n = len(self._members)
        return n < self.session.n_sequences if self._continuous else n == 0

    def _turn(self) -> None:
        """Let sequences leave and join, and run one step."""
        with self.lock:
            self._end_idle()
        for each in [each for each in self._members.values() if each.ended]:
            self._drop(each)
        joining = self._joining()
        for each in joining:
            self._join(each)
        with self.lock:
            members = [each for each in self._members.values() if each.wants_step]
        if not members:
            return
        decoding = [each for each in members if not each.reads]
        lengths = self.governor.choose({each.id: each.room for each in decoding})
        turns = [(each.id, lengths.get(each.id, 0)) for each in members]
        started = perf_counter()
        try:
            n_prompt = self._prompt_tokens(members, decoding)
            seconds, n_most = (0.0, 1) if n_prompt else self._run_of(members, decoding)
            step = self.session.step(turns, n_prompt, seconds=seconds, n_most=n_most)
        except Exception as error:  # It belongs to those that have a turn. Others may go on.
            for each in members:
                self._fail(each, error)
            return
        seconds = perf_counter() - started
        self._learn(step, lengths, seconds)
        with self.lock:
            for result in step.sequences:
                self._deliver(self._members[result.id], result, step.batch, seconds)
            # The readers are woken together: one that runs would take the interpreter from this thread.
            for result in step.sequences:
                self._members[result.id].changed.notify_all()

    def _joining(self) -> list[BatchedSequence]:
        """Return the sequences whose turn to join has come, in their order."""
        joining: list[BatchedSequence] = []
        with self.lock:
            n_free = self.session.n_sequences - len(self._members)
            if not self._continuous and self._members:
                n_free = 0
            while self._waiting and (len(joining) < n_free or self._waiting[0].ended):
                each = self._waiting.popleft()
                if not each.ended:
                    joining.append(each)
        return joining

    def _join(self, each: BatchedSequence) -> None:
        try:
            self._before_join()
            tokens = each.tokens
            assert tokens is not None
            number = self.session.join(tokens, n_unseen=each.n_unseen, n_top=each.n_top, **each.sampling)
        except Exception as error:  # It belongs to the reader.
            self._fail(each, error)
            return
        with self.lock:
            each.id, each.n_reused = number, self.session.n_reused(number)
            each.n_past, each.n_pending = each.n_reused, len(tokens) - 1 - each.n_reused
            self._members[number] = each
            each.changed.notify_all()

    def _drop(self, each: BatchedSequence) -> None:
        self.session.leave(each.id)
        with self.lock:
            del self._members[each.id]

    def _fail(self, each: BatchedSequence, error: BaseException) -> None:
        with self.lock:
            each.error, each.ended = each.error or error, True
            each.changed.notify_all()

    def _deliver(
        self, each: BatchedSequence, result: _core.SequenceStep, batch: _core.Step, seconds: float
    ) -> None:
        """Give a sequence its result of a step, which took so many seconds. Call this with the lock."""
        try:
            result.check()
        except Exception as error:
            self._fail(each, error)
            return
        each.n_pending = result.n_pending
        each.n_past = result.n_past if not each.reads or each.n_pending else each.n_prompt
        if result.waits or each.n_pending:
            return
        n = len(result.tokens)
        each.n_made += n
        each.n_drafted += result.n_drafted
        each.n_accepted += result.n_accepted
        if n or result.reason:
            each.reads = False
            if each.left is not None:
                each.left = max(0, each.left - n)
            each.ended = each.ended or result.reason == "length" or each.left == 0
            took = each.seconds_of(seconds)
            each.take(self._member_step(result, batch, took), result.probabilities)
            if result.reason == "length":
                each.error = each.error or InputError("the context is full")

    def _member_step(self, result: _core.SequenceStep, batch: _core.Step, seconds: float) -> MemberStep:
        n_verified = result.n_drafted + result.n_steps
        return MemberStep(
            result.tokens, result.n_drafted, result.n_accepted, n_verified, result.n_steps,
            batch.draft_ns, batch.verify_ns, batch.sample_ns, result.reason, result.experts, seconds,
        )  # fmt: skip

    def _prompt_tokens(self, members: list[BatchedSequence], decoding: list[BatchedSequence]) -> int:
        """Return how many prompt tokens the next step may evaluate."""
        pending = sum(each.n_pending for each in members if each.reads)
        if not decoding:
            return self._most
        if not pending:
            # A parked sequence may have lost its memory, if the host had none for it.
            return self._piece if any(each.n_pending for each in decoding) else 0
        return 0 if self._debt_s > 0 else min(self._piece, pending)

    def _run_of(self, members: list[BatchedSequence], decoding: list[BatchedSequence]) -> tuple[float, int]:
        """Return for how many seconds, and for how many steps, the next call of the session may go on."""
        if len(decoding) < len(members) or self.session.draft_max or self.steps.is_observed:
            return 0.0, 1
        with self.lock:
            if self._may_join:
                return 0.0, 1
            return min(each.run_s for each in members), min(each.n_ahead for each in members)

    def _learn(self, step: _core.ParallelStep, lengths: dict[int, int], seconds: float) -> None:
        prefill_s = step.prefill_ns / 1e9 if step.n_prompt else 0.0
        self.steps.add(step, lengths, seconds)
        # A piece is read at once, and decoding gets its share of the time afterwards. So a request that comes
        # while others decode waits for its first token no longer than it has to.
        if not lengths:
            self._debt_s = 0.0
        else:
            paid_s = max(0.0, self._debt_s - (seconds - prefill_s))
            self._debt_s = paid_s + prefill_s * (1 - _PREFILL_SHARE) / _PREFILL_SHARE
        if step.verified and not step.n_prompt:
            self.governor.observe(lengths, step, seconds)

    def _end(self) -> None:
        with self.lock:
            self._closed = True
            everyone = [*self._members.values(), *self._waiting]
            self._waiting.clear()
            for each in everyone:
                each.steps.clear()  # Readers would look up the tokens in a model that is closed.
        for each in everyone:
            self._fail(each, Cancelled("the engine is closed"))
        self._members.clear()
        self.session.close()


def open_batch(
    config: EngineConfig,
    pair: ModelPair,
    experts: _core.Experts | None,
    trace: _core.Trace,
    events: Events,
    between: BetweenSteps,
    before_join: Callable[[], object],
    alone: Callable[[], Governor | None],
    several: Callable[[], Governor],
    graphs: PromptGraphs | None,
) -> Batch:
    """Return a batch on the contexts of a pair; `BatchGovernor` describes `alone` and `several`.

    `graphs` chooses the size of the prompts' graphs, None for the context's own.
    """
    session = _core.ParallelSession(
        pair.target_context.pointer,
        pair.draft_context.pointer if pair.draft_context is not None else None,
        experts,
        draft_types=list(config.draft_types),
        draft_max=config.longest_draft,
        draft_min=config.draft_min,
        p_min=config.draft_p_min,
        trace=trace,
        separate=config.deterministic,
        **cache_parameters(config, pair),
    )
    events.subscribe(session)
    if graphs is not None:
        session.on("prompt_graph", graphs.choose)
    return Batch(
        session, BatchGovernor(alone, several, session.draft_max), between,
        piece=pair.target_context.graph_tokens, most=pair.target_context.batch_tokens,
        continuous=config.cont_batching, before_join=before_join,
    )  # fmt: skip
