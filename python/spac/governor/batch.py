"""The draft lengths of a loop's steps: each number of sequences has a governor of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from spac.governor.base import FixedGovernor, Governor

if TYPE_CHECKING:
    import spac._core as _core


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
    ) -> None:
        """Prepare. No draft is longer than `longest`.

        alone: returns the governor of one sequence, None for no drafts. A fixed length holds for several too.
        several: makes the governor of another number of sequences; it is kept.
        """
        self._alone, self._make, self._longest = alone, several, longest
        self._several: dict[int, Governor] = {}
        self._n_steps = self._length = 0  # the length that was chosen last
        self._prompt_s = 0.0  # seconds of prompts since the last choice
        self.chosen = Counter[int]()
        """The steps by the length that was chosen; a new object counts from then on."""

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
        self.chosen[self._length] += 1


def miss_costs(learner: Governor, step: _core.Step) -> tuple[int, float]:
    """Return a step's misses and their seconds, and show it its demand; (-1, 0) if these are not wanted."""
    if not learner.wants_experts:
        return -1, 0.0
    layers = step.layer_costs
    if not len(layers):
        return -1, 0.0
    learner.demand(step.demand, step.n_verified)
    return int(layers["host_distinct"].sum()), float(layers["host_ns"].sum()) * 1e-9
