"""The draft lengths of a loop's steps: each number of sequences has a governor of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Protocol

from spac.governor.base import FixedGovernor, Governor

if TYPE_CHECKING:
    import spac._core as _core


class Timeline(Protocol):
    """The timeline that shows the steps (`spac.stats.timeline.Timeline`)."""

    def add(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a span of time in nanoseconds to a track."""


@dataclass
class ChosenLengths:
    """Counts the draft lengths that were chosen, and what was expected of them."""

    lengths: Counter[int] = field(default_factory=Counter)
    """The number of steps by the draft length that was chosen for them."""
    expected_tokens: float = 0.0
    """The expected tokens, summed over the steps with an expectation (`Governor.expected`)."""
    expected_s: float = 0.0
    """The expected seconds of these steps."""

    def add(self, length: int, expected: tuple[float, float] | None) -> None:
        """Count a step."""
        self.lengths[length] += 1
        if expected is not None:
            self.expected_tokens += expected[0]
            self.expected_s += expected[1]


class BatchGovernor:
    """Chooses one draft length for all sequences of a step.

    The time of a step depends on the number of its sequences, so there is a governor for each number. It
    learns the acceptance from one sequence of each step, in turns.
    """

    def __init__(
        self,
        alone: Callable[[], Governor | None],
        several: Callable[[], Governor],
        longest: int,
        timeline: Callable[[], Timeline | None] = lambda: None,
    ) -> None:
        """Prepare. No draft is longer than `longest`.

        alone: returns the governor of one sequence, None for no drafts. A fixed length holds for several too.
        several: makes the governor of another number of sequences; it is kept. timeline: returns the timeline
        that shows the steps of one sequence, or None.
        """
        self._alone, self._make, self._longest, self._timeline = alone, several, longest, timeline
        self._several: dict[int, Governor] = {}
        self._n_steps = self._length = 0  # the length that was chosen last
        self._prompt_s = 0.0  # seconds of prompts since the last choice
        self.chosen = ChosenLengths()
        """The lengths that were chosen; callers may put a new object here to count from then on."""

    def _of(self, n: int) -> Governor | None:
        """Return the governor of `n` sequences; None for no drafts."""
        alone = self._alone()
        if alone is None or n < 2 or isinstance(alone, FixedGovernor):
            return alone
        if n not in self._several:
            self._several[n] = self._make()
        return self._several[n]

    def prompt(self, spent_s: float) -> None:
        """Record that prompts took so many seconds, which the next step's budget lacks."""
        self._prompt_s += spent_s

    def choose(self, rooms: dict[int, int]) -> dict[int, int]:
        """Return the draft length of each sequence. rooms: the longest useful ones, by sequence."""
        governor = self._of(len(rooms))
        if governor is None or not rooms:
            return dict.fromkeys(rooms, 0)
        if self._prompt_s:
            governor.begin(self._prompt_s)
            self._prompt_s = 0.0
        self._length = length = min(governor.choose(max(rooms.values())), self._longest)
        return {each: min(length, room) for each, room in rooms.items()}

    def observe(self, lengths: dict[int, int], step: _core.ParallelStep, step_s: float) -> None:
        """Learn from a step without prompt tokens, for which `choose` returned `lengths`."""
        governor = self._of(len(lengths))
        seen = [each for each in step.sequences if len(each.tokens)]
        if governor is None or not seen:
            return
        self._n_steps += 1
        one, batch = seen[self._n_steps % len(seen)], step.batch
        misses, miss_s = miss_costs(governor, batch)
        governor.observe(one.n_drafted, one.n_accepted, batch.draft_ns * 1e-9, step_s, misses, miss_s)
        length = self._length
        self.chosen.add(length, governor.expected)
        timeline = self._timeline()
        if timeline is not None and len(lengths) == 1 and not isinstance(governor, FixedGovernor):
            _show(timeline, governor, length, one, step_s)


def miss_costs(learner: Governor, step: _core.Step) -> tuple[int, float]:
    """Return a step's misses and their seconds, and show it its demand; (-1, 0) if these are not wanted."""
    if not learner.wants_experts:
        return -1, 0.0
    layers = step.layer_costs
    if not len(layers):
        return -1, 0.0
    learner.demand(step.demand, step.n_verified)
    return int(layers["host_distinct"].sum()), float(layers["host_ns"].sum()) * 1e-9


def _show(timeline: Timeline, governor: Governor, k: int, step: _core.SequenceStep, step_s: float) -> None:
    """Show a step on the timeline, with the expected and the real Θ."""
    theta = {"tokens/s": round((step.n_accepted + 1) / step_s, 1)}
    if (expected := governor.expected) is not None:
        theta["expected tokens/s"] = round(expected[0] / expected[1], 1)
    end = monotonic_ns()
    drafted, accepted = step.n_drafted, step.n_accepted
    start = end - int(step_s * 1e9)
    timeline.add("governor", f"k = {k}", start, end, k=k, drafted=drafted, accepted=accepted, **theta)
