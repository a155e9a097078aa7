"""The draft lengths of a batch of sequences: a governor's for one alone, `BatchLengths`' for several."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from spac.governor.base import FixedGovernor, Governor
from spac.governor.batch_lengths import BatchLengths, Outcome
from spac.governor.controller import miss_costs

if TYPE_CHECKING:
    import spac._core as _core


class BatchGovernor:
    """Chooses the draft length of each sequence of a step."""

    def __init__(
        self, alone: Callable[[], Governor | None], several: Callable[[], BatchLengths], longest: int
    ):
        """Prepare. No draft is longer than `longest`.

        alone: returns the governor of one sequence, None for no drafts. A fixed length holds for several too.
        several: makes what chooses for several sequences; it is kept.
        """
        self._alone, self._make, self._longest = alone, several, longest
        self._several: BatchLengths | None = None

    def choose(self, rooms: dict[int, int]) -> dict[int, int]:
        """Return the draft length of each sequence. rooms: the longest useful ones, by sequence."""
        rooms = {each: min(room, self._longest) for each, room in rooms.items()}
        governor = self._alone()
        if governor is None or not rooms:
            return dict.fromkeys(rooms, 0)
        if len(rooms) == 1 or isinstance(governor, FixedGovernor):
            return {each: min(governor.choose(room), room) for each, room in rooms.items()}
        if self._several is None:
            self._several = self._make()
        return self._several.choose(rooms)

    def observe(self, lengths: dict[int, int], step: _core.ParallelStep, step_s: float) -> None:
        """Learn from a step without prompt tokens, for which `choose` returned `lengths`."""
        governor = self._alone()
        seen = [
            Outcome(each.id, each.n_drafted, each.n_accepted) for each in step.sequences if len(each.tokens)
        ]
        if governor is None or not seen or isinstance(governor, FixedGovernor):
            return
        draft_s = step.batch.draft_ns * 1e-9
        if len(lengths) == 1:
            misses, miss_s = miss_costs(governor, step.batch)
            governor.observe(seen[0].n_drafted, seen[0].n_accepted, draft_s, step_s, misses, miss_s)
        elif self._several is not None:
            misses, miss_s = miss_costs(self._several, step.batch)
            self._several.observe(seen, draft_s, step_s, misses, miss_s)
