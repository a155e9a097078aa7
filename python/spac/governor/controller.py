"""The draft-length controller. It runs a session's steps at the lengths that a governor chooses."""

from __future__ import annotations

from collections import Counter
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any, Protocol

from spac.governor.base import FixedGovernor, Governor

if TYPE_CHECKING:
    import spac._core as _core

_NO_END = 1 << 30


class Timeline(Protocol):
    """The timeline that shows the steps (`spac.stats.timeline.Timeline`)."""

    def add(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a span of time in nanoseconds to a track."""


def miss_costs(learner: Governor, step: _core.Step) -> tuple[int, float]:
    """Return a step's misses and their seconds, and show it its demand; (-1, 0) if these are not wanted."""
    if not learner.wants_experts:
        return -1, 0.0
    layers = step.layer_costs
    if not len(layers):
        return -1, 0.0
    learner.demand(step.demand, step.n_verified)
    return int(layers["host_distinct"].sum()), float(layers["host_ns"].sum()) * 1e-9


class DraftLengthController:
    """Runs the steps of one generation."""

    def __init__(self, governor: Governor, session: _core.Session, timeline: Timeline | None = None) -> None:
        self.governor, self._session = governor, session
        self._length = -1
        self._timeline = None if isinstance(governor, FixedGovernor) else timeline
        self.lengths: Counter[int] = Counter()
        """The number of steps by the draft length that was chosen for them."""
        self.expected_tokens = self.expected_s = 0.0
        """The expected tokens and seconds, summed over steps with an expectation (`Governor.expected`)."""

    def begin(self, prompt_s: float) -> None:
        """Report to the governor that the prompt has been evaluated, which took `prompt_s` seconds."""
        self.governor.begin(prompt_s)

    def step(self, room: int | None) -> _core.Step:
        """Run the next step and return it. Raise the session's errors.

        room: the number of tokens that are still wanted, or None for no end.
        """
        governor, session = self.governor, self._session
        # The target's own token is one of the wanted ones.
        k = min(governor.choose(_NO_END if room is None else max(0, room - 1)), session.draft_max)
        if k != self._length:  # otherwise the length stays as it is, because other code may have set it
            self._length = k
            session.set_draft_length(k)
        start = perf_counter()
        step = session.step()
        step_s = perf_counter() - start
        if step.n_verified:
            self._learn(k, step, step_s)
        return step

    def _learn(self, k: int, step: _core.Step, step_s: float) -> None:
        governor = self.governor
        misses, miss_s = miss_costs(governor, step)
        governor.observe(step.n_drafted, step.n_accepted, step.draft_ns * 1e-9, step_s, misses, miss_s)
        self.lengths[k] += 1
        expected = governor.expected
        if expected is not None:
            self.expected_tokens += expected[0]
            self.expected_s += expected[1]
        if self._timeline is not None:
            self._show(self._timeline, k, step, step_s)

    def _show(self, timeline: Timeline, k: int, step: _core.Step, step_s: float) -> None:
        """Show the step on the timeline, with the expected and the real Θ."""
        theta = {"tokens/s": round((step.n_accepted + 1) / step_s, 1)}
        expected = self.governor.expected
        if expected is not None:
            theta["expected tokens/s"] = round(expected[0] / expected[1], 1)
        end = monotonic_ns()
        start, drafted = end - int(step_s * 1e9), step.n_drafted
        timeline.add(
            "governor", f"k = {k}", start, end, k=k, drafted=drafted, accepted=step.n_accepted, **theta
        )
