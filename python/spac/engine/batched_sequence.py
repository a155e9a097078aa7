"""The sequence of one generation among others, and the generation itself."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import TYPE_CHECKING, Any

from spac import _core
from spac.engine.generation import Generation
from spac.errors import Cancelled, InputError
from spac.machine.arrays import Int32Array
from spac.model.c_api import TokenArray

if TYPE_CHECKING:
    from spac.engine.batch import Batch

NO_END = 1 << 30
_OWN = (
    "activations", "activations_hit", "activations_loaded", "distinct", "distinct_hit", "misses_cpu",
    "misses_loaded",
)  # fmt: skip
AHEAD = 2
"""The number of steps that a sequence may be ahead of its reader. The others go on meanwhile."""


@dataclass(frozen=True)
class MemberStep:
    """A sequence's result of one step, with the fields of `_core.Step` that a generation reads.

    The times are the batch's.
    """

    tokens: Int32Array
    n_drafted: int
    n_accepted: int
    n_verified: int
    n_steps: int
    draft_ns: int
    verify_ns: int
    sample_ns: int
    reason: str
    experts: dict[str, int]
    """The counts of the sequence's own tokens, by the names of `Experts.stats`."""
    seconds: float
    """The seconds since the sequence's step before, without a pause for its reader."""


class BatchedSequence:
    """One sequence of a batch, for one reader. `cancel` and `leave` may be called by any thread."""

    def __init__(
        self, batch: Batch, sampling: Mapping[str, Any], limit: int | None = None, n_top: int = -1
    ) -> None:
        """Prepare a sequence; `Batch.sequence` describes the arguments."""
        self.batch, self.sampling, self.n_top = batch, sampling, n_top
        self.left = limit
        """The number of tokens that are still wanted; None for no limit."""
        self.run_s = 0.0
        """The seconds for which a call of the session may make further steps before the reader is woken."""
        self.expected: int | None = None
        """The number of tokens after which nothing is made ahead of the reader; None for no such number."""
        self.id = -1
        """The sequence's number in the session; -1 while it waits and after it has left."""
        self.tokens: TokenArray | None = None
        self.n_unseen = 0
        self.n_past = 0
        """The number of tokens in the target's memory."""
        self.n_reused = 0
        """The number of tokens of the prompt that did not have to be evaluated."""
        self.n_pending = 0
        self.reads = True
        """True until the prompt is read."""
        self.ended = False
        """True once the context or the limit is reached, an error came, or the reader has left."""
        self.full_since: float | None = None
        """The time of the monotonic clock since which the reader is behind; None if it is not."""
        self.error: BaseException | None = None
        self.decode_s = 0.0
        """The seconds in which the tokens were made, without pauses for the reader."""
        self._made_at: float | None = (
            None  # time of the last step; None before it or while the reader is behind
        )
        self.n_made = self.n_drafted = self.n_accepted = 0
        """The numbers of tokens that were made, of those that were drafted, and of drafted ones accepted."""
        self.steps: deque[tuple[MemberStep, Any]] = deque()
        self._asks = False  # True while the reader waits for a step
        self._has_end = False  # True once a token ended the text
        self.own_counts = Counter(dict.fromkeys(_OWN, 0))
        """The counts of its own tokens' experts, in the steps that its reader has taken."""
        self.changed = threading.Condition(batch.lock)
        self._probabilities: Any = None

    def prefill(
        self,
        tokens: TokenArray,
        progress: Callable[[int, int], object] | None = None,
        *,
        n_unseen: int = 0,
        images: _core.ImagePrompt | None = None,
    ) -> None:
        """Wait until the prompt is read, in its turn.

        Raise InputError if the prompt or the sampling is refused, Cancelled, and other errors of the session.
        """
        assert images is None  # The configuration refuses a projector.
        if self.error is not None:  # A session may be asked again after Cancelled.
            raise self.error
        self.tokens, self.n_unseen = tokens, n_unseen
        self.batch.enter(self)
        total, done = self.n_prompt, -1
        while True:
            with self.changed:
                while self.error is None and self.reads and self.n_past == done:
                    self.changed.wait()
                if self.error is not None:
                    raise self.error
                done, reads = self.n_past, self.reads
            if not reads:
                return
            if progress is not None and self.id >= 0:
                progress(done, total)

    def step(self) -> MemberStep:
        """Return the next step's result, and wait for it. Raise Cancelled and other errors of the session."""
        with self.changed:
            if not self.steps and self.error is None:
                self._asks, self.full_since = True, None
                self.batch.work.notify()
                self.changed.wait_for(lambda: self.steps or self.error)
                self._asks = False
            if not self.steps:
                assert self.error is not None
                raise self.error
            step, self._probabilities = self.steps.popleft()
            self.full_since = monotonic() if self._is_made else None
            self.batch.work.notify()
        self.own_counts.update(step.experts)
        return step

    def probabilities(self, _n_top: int) -> tuple[Any, Any, Any]:
        """Return what `_core.Session.probabilities` would for the last step, of `n_top` tokens."""
        if self._probabilities is None:
            raise InputError("no probabilities were asked for with this sequence")
        result: tuple[Any, Any, Any] = self._probabilities
        return result

    def figures(self) -> dict[str, Any]:
        """Return what is known of the sequence now, in llama-server's words where it has some."""
        n_remain = -1 if self.left is None else self.left
        return {
            "n_prompt_tokens": self.n_prompt + 1,
            "n_prompt_tokens_processed": max(0, min(self.n_past, self.n_prompt) - self.n_reused),
            "next_token": {"has_next_token": not self.ended, "n_remain": n_remain, "n_decoded": self.n_made},
        }

    def cancel(self) -> None:
        """End the sequence; its reader gets Cancelled once it has taken the steps that are there."""
        with self.changed:
            self.error = self.error or Cancelled("cancelled")
            self.ended = True
            self.changed.notify_all()
            self.batch.interrupt()

    def leave(self) -> None:
        """End the sequence, because its reader needs no more."""
        self.cancel()

    @property
    def n_prompt(self) -> int:
        """The number of the prompt's tokens that are evaluated before the first step."""
        return 0 if self.tokens is None else len(self.tokens) - 1

    @property
    def room(self) -> int:
        """The longest draft that is of use, beside the target's own token."""
        return NO_END if self.left is None else self.left - 1

    @property
    def wants_step(self) -> bool:
        """True if the next step should have a turn of this sequence."""
        if self.ended or self.left == 0:
            return False
        if self._is_made:
            return self._asks and not self.steps
        return len(self.steps) < AHEAD

    @property
    def _is_made(self) -> bool:
        """True if the reader probably needs no more than was made."""
        return self._has_end or (self.expected is not None and self.n_made >= self.expected)

    @property
    def n_ahead(self) -> int:
        """The most steps that the next call of the session may make for this sequence."""
        if not self.n_made:
            return 1  # A reader gets the first token at once.
        left = NO_END if self.left is None else self.left
        return max(1, left if self.expected is None else min(left, self.expected - self.n_made))

    def seconds_of(self, step_s: float) -> float:
        """Return the seconds that a step took which ends now, of which the session's call took `step_s`.

        They begin at the sequence's last step, or with the call if it waited for its reader meanwhile.
        """
        now, before = perf_counter(), self._made_at
        self._made_at = now
        took = step_s if before is None else now - before
        self.decode_s += took
        return took

    def take(self, step: MemberStep, probabilities: Any) -> None:
        """Add a step for the reader."""
        self._has_end = step.reason == "stop"
        self.steps.append((step, probabilities))
        if len(self.steps) == AHEAD or self._is_made:
            self.full_since, self._made_at = monotonic(), None


class BatchedGeneration(Generation):
    """A generation whose sequence runs beside others. It leaves them when it ends or is dropped."""

    def __init__(self, *args: Any, **named: Any) -> None:
        """Prepare a generation; `Generation` describes the arguments."""
        super().__init__(*args, **named)
        self._leave = weakref.finalize(self, self._session.leave)

    def _end(self) -> None:
        super()._end()
        self._leave()  # A finalizer that stays would keep the sequence's error, whose frames refer to this.

    def cancel(self) -> None:
        """Stop after the step that runs. The text generated so far remains. Any thread may call this."""
        super().cancel()
        self._session.leave()
