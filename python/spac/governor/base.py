"""The contract of a governor, which chooses the draft length, and the governor of a fixed length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from spac.machine.arrays import Int32Array


class Governor(ABC):
    """Chooses the draft length of every step and observes the result.

    A governor serves one loop, on its thread. It outlives a generation: what it has learned of the
    machine and the models holds for the next one.
    """

    name: ClassVar[str]

    def begin(self, spent_s: float) -> None:  # noqa: B027
        """Record that a generation's prompt has been evaluated, which took `spent_s` seconds."""

    @abstractmethod
    def choose(self, room: int) -> int:
        """Return the draft length of the next step, at most `room`.

        room: the number of tokens that can still be of use.
        """

    @property
    def wants_experts(self) -> bool:
        """True if `demand` and the misses of the running step are of use. To count them takes time."""
        return False

    def demand(self, counts: Int32Array, n_verified: int) -> None:  # noqa: B027
        """Record the step's activations, int32 [L, N]. The call comes before the step's `observe`.

        counts: the activations, not to be kept.
        """

    def observe(  # noqa: B027
        self,
        n_drafted: int,
        n_accepted: int,
        draft_s: float,
        step_s: float,
        misses: int = -1,
        miss_s: float = 0.0,
    ) -> None:
        """Learn from the step of the last choice, after its verification.

        n_drafted: the tokens drafted, fewer than chosen where the draft stopped early. n_accepted: the
        accepted ones of these. draft_s, step_s: the seconds of drafting, and of the whole step. misses: the
        distinct (layer, expert) that were not resident, -1 if they are not counted. miss_s: the seconds of
        the step that the misses took, as the miss policy pays.
        """

    @property
    def expected(self) -> tuple[float, float] | None:
        """The expected (tokens, seconds) of the last step; None from a governor that expects nothing."""
        return None


class FixedGovernor(Governor):
    """Chooses always the same length."""

    name = "fixed"

    def __init__(self, draft_length: int) -> None:
        self._draft_length = draft_length

    def choose(self, room: int) -> int:
        """Return the fixed length, for any `room`."""
        return self._draft_length
