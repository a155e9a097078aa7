"""The draft length of a batch of sequences: each number of sequences has a governor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spac.governor.base import FixedGovernor, Governor
from spac.governor.controller import miss_costs

if TYPE_CHECKING:
    import spac._core as _core


class BatchGovernor:
    """Chooses one draft length for all sequences of a step.

    The time of a step depends on the number of its sequences, so there is a governor for each number. It
    learns the acceptance from one sequence of each step, in turns.
    """

    def __init__(
        self, alone: Callable[[], Governor | None], several: Callable[[], Governor], longest: int
    ) -> None:
        """Prepare. No draft is longer than `longest`.

        alone: returns the governor of one sequence, None for no drafts. A fixed length holds for several too.
        several: makes the governor of another number of sequences; it is kept.
        """
        self._alone, self._make, self._longest = alone, several, longest
        self._several: dict[int, Governor] = {}
        self._n_steps = 0

    def _of(self, n: int) -> Governor | None:
        """Return the governor of `n` sequences; None for no drafts."""
        alone = self._alone()
        if alone is None or n < 2 or isinstance(alone, FixedGovernor):
            return alone
        if n not in self._several:
            self._several[n] = self._make()
        return self._several[n]

    def choose(self, rooms: dict[int, int]) -> dict[int, int]:
        """Return the draft length of each sequence. rooms: the longest useful ones, by sequence."""
        governor = self._of(len(rooms))
        if governor is None or not rooms:
            return dict.fromkeys(rooms, 0)
        length = min(governor.choose(max(rooms.values())), self._longest)
        return {each: min(length, room) for each, room in rooms.items()}

    def observe(self, lengths: dict[int, int], step: _core.ParallelStep, step_s: float) -> None:
        """Learn from a step without prompt tokens, for which `choose` returned `lengths`."""
        governor = self._of(len(lengths))
        seen = [each for each in step.sequences if len(each.tokens)]
        if governor is None or not seen:
            return
        self._n_steps += 1
        one = seen[self._n_steps % len(seen)]
        misses, miss_s = miss_costs(governor, step.batch)
        governor.observe(one.n_drafted, one.n_accepted, step.batch.draft_ns * 1e-9, step_s, misses, miss_s)
