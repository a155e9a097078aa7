"""The recording of several generations at once, for `Engine.record`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from spac import _core
from spac.engine.batch import Batch
from spac.engine.session_events import Events
from spac.errors import InputError
from spac.stats import Meter, device_counts
from spac.stats.recording import Recorder


class BatchRecording:
    """Records every step of a batch until `end`."""

    def __init__(
        self, recorder: Recorder, batch: Batch, experts: _core.Experts | None, events: Events
    ) -> None:
        """Begin with the batch's next step."""
        self._recorder, self._batch, self._experts = recorder, batch, experts
        self._before = self._now()
        recorder.watch(events)
        recorder.begin(batch.session.draft_max, experts, self._before.experts)
        try:
            batch.observe(self._step)
        except InputError:
            recorder.end()
            raise

    def end(self) -> Meter:
        """End the recording, and return the counts of its steps. A second call changes nothing."""
        self._batch.observe(None)
        self._recorder.end()
        return difference(self._now(), self._before)

    def _step(self, step: _core.ParallelStep, lengths: Mapping[int, int], seconds: float) -> None:
        longest = max(lengths.values(), default=0)
        n = sum(len(each.tokens) > 0 for each in step.sequences)
        self._recorder.step(step.batch, int(seconds * 1e9), self._counts(), longest, n)

    def _now(self) -> Meter:
        resident = self._experts.slots.n_resident if self._experts is not None else 0
        return replace(self._batch.meter, experts=self._counts(), resident=resident)

    def _counts(self) -> dict[str, int]:
        experts = self._experts
        return {**experts.stats, **device_counts(experts)} if experts is not None else {}


def difference(now: Meter, before: Meter) -> Meter:
    """Return the counts of `now` that came after `before`."""
    counts = {}
    for each in fields(Meter):
        value = getattr(now, each.name)
        if isinstance(value, int | float) and each.name != "resident":
            counts[each.name] = value - getattr(before, each.name)
    experts = {name: value - before.experts.get(name, 0) for name, value in now.experts.items()}
    return replace(now, experts=experts, prompt_experts=experts, **counts)
