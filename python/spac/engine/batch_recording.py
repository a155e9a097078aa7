"""The counts of the steps of several generations at once, and their recording for `Engine.record`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import fields, replace

from spac import _core
from spac.engine.events import Events
from spac.errors import InputError
from spac.governor import Governor
from spac.stats import Meter
from spac.stats.recording import Recorder

StepObserver = Callable[[_core.ParallelStep, Mapping[int, int], float, Mapping[str, int]], object]
"""The type of the argument of `StepMeter.observe`."""
Counts = deque[dict[str, int]]
"""The experts' counters at the beginning of a text, at the end of its prompt, and at the end of each step."""


def read_counts(experts: _core.Experts | None) -> dict[str, int]:
    """Return the counters of the experts; none without the split."""
    return {} if experts is None else experts.stats


class StepMeter:
    """Counts the steps of all generations, and shows them to an observer."""

    def __init__(self, experts: _core.Experts | None = None) -> None:
        self._experts = experts
        self.meter = Meter()
        """The counts of all generations together, without those of the experts."""
        self.counts: Counts | None = None
        """Where the experts' counters of the one text go that runs, or None."""
        self._observing = threading.Lock()
        self._observer: StepObserver | None = None

    def observe(self, observer: StepObserver | None) -> None:
        """Call `observer` after every step that decodes, in the thread that makes it; None ends it.

        Its arguments are the step, the draft lengths asked for by sequence, the seconds that the step took,
        and the experts' counters at its end. It is also called for prompts, whose step is not `verified`. No
        call runs when this one returns. Raise InputError if there is an observer already.
        """
        with self._observing:
            if observer is not None and self._observer is not None:
                raise InputError("the generations are being recorded: end that recording first")
            self._observer = observer

    def add(self, step: _core.ParallelStep, lengths: Mapping[int, int], seconds: float) -> None:
        """Count a step, which took `seconds` with its prompts."""
        self._count(step, seconds)
        texts = self.counts  # Another thread may end the text meanwhile, or begin or end a recording.
        with self._observing:
            if texts is None and self._observer is None:
                return
            counts = read_counts(self._experts)
            if texts is not None and step.sequences:
                texts.append(counts)
            if self._observer is not None:
                self._observer(step, lengths, seconds, counts)

    def _count(self, step: _core.ParallelStep, seconds: float) -> None:
        meter, batch = self.meter, step.batch
        prefill_s = step.prefill_ns / 1e9 if step.n_prompt else 0.0
        meter.prefill_s += prefill_s
        meter.prefilled_tokens += step.n_prompt
        meter.generated_tokens += len(batch.tokens)
        if not step.verified:
            meter.first_tokens += len(batch.tokens)
            return
        meter.steps += batch.n_steps
        meter.step_tokens += len(batch.tokens)
        meter.decode_s += seconds - prefill_s
        meter.drafted += batch.n_drafted
        meter.accepted += batch.n_accepted
        meter.draft_s += batch.draft_ns / 1e9
        meter.verify_s += batch.verify_ns / 1e9
        meter.sample_s += batch.sample_ns / 1e9


class BatchRecording:
    """Records every step of several generations until `end`."""

    def __init__(
        self,
        recorder: Recorder,
        steps: StepMeter,
        longest_draft: int,
        experts: _core.Experts | None,
        events: Events,
        governor: Governor | None,
        trace: _core.Trace,
    ) -> None:
        """Begin with the next step. `governor` is shown in the recording, and `trace` records the spans.

        Raise InputError if another recording runs.
        """
        self._recorder, self._steps, self._experts = recorder, steps, experts
        steps.observe(self._step)
        self._before = self._now()
        recorder.watch(events, governor)
        recorder.begin(longest_draft, experts, self._before.experts, trace)

    def end(self) -> Meter:
        """End the recording, and return the counts of its steps. A second call changes nothing."""
        self._steps.observe(None)
        self._recorder.end()
        return difference(self._now(), self._before)

    def _step(
        self,
        step: _core.ParallelStep,
        lengths: Mapping[int, int],
        seconds: float,
        counts: Mapping[str, int],
    ) -> None:
        if not step.verified:
            self._recorder.skip(counts)
            return
        longest = max(lengths.values(), default=0)
        n = sum(len(each.tokens) > 0 for each in step.sequences)
        self._recorder.step(step.batch, int(seconds * 1e9), counts, longest, n)

    def _now(self) -> Meter:
        resident = self._experts.slots.n_resident if self._experts is not None else 0
        return replace(self._steps.meter, experts=read_counts(self._experts), resident=resident)


def difference(now: Meter, before: Meter) -> Meter:
    """Return the counts of `now` that came after `before`."""
    counts = {}
    for each in fields(Meter):
        value = getattr(now, each.name)
        if isinstance(value, int | float) and each.name != "resident":
            counts[each.name] = value - getattr(before, each.name)
    experts = {name: value - before.experts.get(name, 0) for name, value in now.experts.items()}
    return replace(now, experts=experts, prompt_experts=experts, **counts)
