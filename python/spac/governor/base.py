"""What chooses the draft length: the contract, and the choice that is none."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
import numpy.typing as npt


class Governor(ABC):
    """Chooses the draft length of every step and is told what came of it. One session's, from one thread.

    It outlives a generation: what was learnt of the machine and the models holds for the next one.
    """

    name: ClassVar[str]

    def begin(self, spent_s: float) -> None:  # noqa: B027
        """A generation's prompt has been read, which took `spent_s`."""

    @abstractmethod
    def choose(self, room: int) -> int:
        """The draft length of the next step, at most `room`: tokens that can still be of use."""

    @property
    def wants_experts(self) -> bool:
        """Whether `demand` and the misses of the step that is running are of use; to count them takes
        time."""
        return False

    def demand(self, counts: npt.NDArray[np.int32], n_verified: int) -> None:  # noqa: B027
        """Activations int32 [L, N] of the step, not to be kept; before its `observe`."""

    def observe(  # noqa: B027
        self,
        n_drafted: int,
        n_accepted: int,
        draft_s: float,
        step_s: float,
        misses: int = -1,
        miss_s: float = 0.0,
    ) -> None:
        """The step of the last choice, verified.

        n_drafted: tokens drafted, fewer than chosen where the draft stopped early; n_accepted: of these;
        draft_s, step_s: of drafting, and of the whole step. misses: distinct (layer, expert) that were not
        resident, -1 when not counted; miss_s: what they took of the step, as the miss policy pays.
        """

    @property
    def expected(self) -> tuple[float, float] | None:
        """(tokens, seconds) that were expected of the last step; None from a governor that expects
        nothing."""
        return None


class FixedGovernor(Governor):
    """Always the same length."""

    name = "fixed"

    def __init__(self, draft_length: int) -> None:
        self._draft_length = draft_length

    def choose(self, room: int) -> int:
        return self._draft_length
