"""The recording of one generation, or of several at once, as a file.

`spac.report` makes a page and a timeline of it, and `bench.schedulers` replays it. The file is a `.npz`
archive of numpy arrays without pickled objects. `spans` says what ran when (`SPAN_TYPE`). The other arrays
are the demand of each step (`spac.scheduler.demand`), if the run has experts and one generation. The member
`report.json` is one JSON object. It holds no text of the prompt or the answer. [L, N] is [MoE layer in the
order in which they run, expert]. A field that a run does not have (experts, a governor, thresholds) is null.

    format, schema  "spac-recording", 2; fields are not renamed and keep their meaning within a schema
    version         the version of spac
    started         the time at which decoding began, ISO 8601, UTC
    stats           the figures and settings of the run, as in `RunStats.to_json`
    steps           per_row: steps in a row; columns: sums over the steps of each row, by name (`COLUMNS`)
    lengths         for each draft length asked for, 0 to the longest: steps, tokens, time_ns of such steps
    experts         layers: name, n_expert, expert_bytes, pool, device of each; n_expert: N;
                    devices: their names, by the layers' numbers; pool_slots: slots of every pool;
                    by_layer: sums over the run of `Step.layer_costs`, by name, each [L];
                    looks: the number of times the residency was read, every few steps with many experts;
                    demand: activations; resident: looks at which the expert had a slot; arrivals: looks at
                    which it had one and had none at the previous look: int32 [L, N], little-endian, base64
    thresholds      for a scheduler whose utilities have levels: levels (K), per_row, steps (of each row),
                    sums: [row][L] thresholds, summed over the row's steps
    governor        name; curve: its last model, by draft length 0 … K: tokens, compute_s, theta
    device          "measured": `device_ns` is the device's time on experts; "at most": it is the time from
                    each launch until its end was observed; null: there are no experts on a device
    activities      the names of the spans' activities; "track: name" for those that a program added
    dropped         spans that were left out: the first `CAPACITY` are kept

A run of any length makes a report of bounded size. When the rows are full, they are merged two by two, and
each row then covers twice as many steps. Sums stay exact; only resolution in time is lost. The demand grows
with each step.
"""

from __future__ import annotations

import base64
import io
import json
import time
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from spac import __version__
from spac.errors import InputError
from spac.machine.arrays import Float64Array, Int32Array
from spac.machine.files import check_writable, write_atomically
from spac.scheduler.demand import Demand, DemandRecorder
from spac.scheduler.driver import Driver, layers_of
from spac.stats.series import Series
from spac.stats.spans import Spans

if TYPE_CHECKING:
    import spac._core as _core
    from spac.governor.base import Governor
    from spac.stats.run_stats import RunStats
    from spac.stats.scheduler_time import SchedulerTime

FORMAT, SCHEMA = "spac-recording", 2
REPORT = "report.json"
"""The name of the report in the archive."""

STEP_ROWS, LAYER_ROWS = 2048, 256  # most rows of figures per step, and of figures per step and layer
LOOK = 4096  # most experts for which the residency is read after every step; with more, it is read less often
BATCH = 32  # steps that are summed up at once

COUNTERS = (
    "activations", "activations_hit", "distinct", "distinct_hit",
    "uploads", "upload_bytes", "uploads_wasted", "evictions",
    "host_wait_ns", "host_compute_ns", "queue_ns",
    "download_bytes", "join_bytes",
)  # fmt: skip
"""The columns that are the mechanism's counters, by their names in csrc/backend/experts/experts.h."""
STEP = (
    "steps", "time_ns", "draft_ns", "verify_ns", "sample_ns", "scheduler_ns",
    "tokens", "drafted", "accepted", "draft_length",
    *COUNTERS,
    "expected_tokens", "expected_ns", "sequences",
)  # fmt: skip
SPAN = ("device_ns",)
COLUMNS = (*STEP, *SPAN)
"""The columns of `steps`.

time_ns is the whole step. host_wait_ns, host_compute_ns and queue_ns (calls that launch and copy) are parts
of verify_ns, and device_ns runs beside them. draft_length is the length asked for, and
drafted is the number of tokens drafted. expected_… is what the governor expected of the step, 0 without a
model. sequences is the number of generations whose tokens a step verified. With several, all figures are
those of the batch, draft_length is the longest of theirs, and copies while a prompt was read count in the
next step.
"""

LENGTHS = ("steps", "tokens", "time_ns")


class Events(Protocol):
    """The part of an engine's events that a recorder reads (`spac.engine.events.Events`)."""

    @property
    def driver(self) -> Driver | None:
        """The scheduler's driver; None if no expert can be resident."""

    recorder: Recorder | None
    """The recorder that gets the scheduler's spans, or None."""

    @property
    def scheduler_time(self) -> SchedulerTime:
        """The scheduler's time in the generation."""

    def wait(self) -> None:
        """Wait until the scheduler has seen the last step."""


class Recorder:
    """Records one generation for `Engine.generate(…, recorder=…)`, or a batch for `Engine.record`.

    It is not thread-safe.
    """

    def __init__(self, path: Path | str | None = None, *, keeps_demand: bool = True) -> None:
        """Make an empty recording, which `write` writes to `path`.

        keeps_demand: keep the demand of each step, of one generation. Raise InputError if no file can be
        written there, or if its name does not end in .npz.
        """
        self.path = Path(path) if path is not None else None
        if self.path is not None:
            if self.path.suffix != ".npz":
                raise InputError(f"{path}: a recording is a .npz file: give a name that ends so")
            check_writable(self.path)
        self._keeps_demand = keeps_demand
        self._steps_demand: DemandRecorder | None = None
        self._experts: _core.Experts | None = None
        self._events: Events | None = None
        self._governor: Governor | None = None
        self._spans = Spans()
        self._last_end = 0  # time of the last step's end, in ns
        self._device: str | None = None  # the file's field `device`
        self._model: dict[str, Any] | None = None
        self._started: datetime | None = None
        self._steps, self._traced_steps = Series(len(STEP), STEP_ROWS), Series(len(SPAN), STEP_ROWS)
        self._lengths: list[list[int]] = []
        self._thresholds: Series | None = None
        self._levels = 0
        self._curve: Any = None
        self._ends: list[int] = []  # end times, in ns, of the last steps, which are not summed up yet
        self._costs: list[npt.NDArray[np.void]] = []  # [L] for each of them
        self._taus: list[Int32Array] = []  # thresholds, int32 [L], for each of them
        self._by_layer: dict[str, Any] = {}
        self._n_look = self._steps_unseen = 0

    # Recording

    def watch(self, events: Events, governor: Governor | None = None) -> None:
        """Record the scheduler and the governor of an engine too."""
        self._events, self._governor = events, governor
        events.recorder = self

    def begin(
        self, draft_max: int, experts: _core.Experts | None, counts: Mapping[str, int], trace: _core.Trace
    ) -> None:
        """Begin recording; `counts` are the experts' current counters, as in `step`.

        `draft_max` is the longest draft length. `trace` records the mechanism's spans.
        """
        self._spans.begin(trace)
        self._lengths = [[0, 0, 0] for _ in range(draft_max + 1)]
        self._scheduled_ns = self._events.scheduler_time.ns if self._events is not None else 0
        self._counts = counts
        if experts is not None and experts.n_layer:
            self._watch_experts(experts)
        self._started = datetime.now(UTC)

    def _watch_experts(self, experts: _core.Experts) -> None:
        self._device = "measured"
        self._experts, self._model = experts, _described(experts)
        self._absent = experts.residency() >> 31  # -1 where an expert has no slot, else 0
        self._look_every = -(-self._absent.size // LOOK)
        self._demand, self._away, self._arrivals = (np.zeros_like(self._absent) for _ in range(3))
        if self._keeps_demand:
            self._steps_demand = DemandRecorder(layers_of(experts))
            if self._driver is not None:
                self._driver.record(self._steps_demand)

    def step(
        self, step: _core.Step, time_ns: int, counts: Mapping[str, int], length: int, n_sequences: int = 1
    ) -> None:
        """Record a step that is over; `time_ns` is the time of all of it.

        `length` is the draft length asked for, and `n_sequences` the number of generations in the step. A
        step that ends before `begin` does is left out.
        """
        if self._started is None:
            return
        scheduled = 0
        if self._events is not None:
            self._events.wait()
            scheduled = self._events.scheduler_time.ns
        scheduler_ns, self._scheduled_ns = scheduled - self._scheduled_ns, scheduled
        n_token = len(step.tokens)
        values = [1, time_ns, step.draft_ns, step.verify_ns, step.sample_ns, scheduler_ns]
        values += [n_token, step.n_drafted, step.n_accepted, length]
        if length >= len(self._lengths):  # A draft that had left is back.
            self._lengths += [[0, 0, 0] for _ in range(length + 1 - len(self._lengths))]
        sums = self._lengths[length]
        sums[0] += 1
        sums[1] += n_token
        sums[2] += time_ns
        if self._experts is not None:
            before, self._counts = self._counts, counts
            self._observe_experts(self._experts, step)
            values += [counts[name] - before[name] for name in COUNTERS]
        else:
            values += [0] * len(COUNTERS)
        self._steps.add([*values, *self._expected(), n_sequences])
        end = time.monotonic_ns()
        self.add("steps", f"k = {length}", max(end - time_ns, self._last_end), end)
        self._last_end = end
        self._ends.append(end)
        if len(self._ends) == BATCH or self._spans.is_full:
            self._sum_up()

    def add(self, track: str, name: str, start_ns: int, end_ns: int) -> None:
        """Add a program's own span, from any thread; on one track, spans nest or follow each other."""
        self._spans.add(track, name, start_ns, end_ns)

    def skip(self, counts: Mapping[str, int]) -> None:
        """Leave out what came before `counts`, such as a prompt."""
        self._counts = counts
        if not self._ends or self._spans.is_full:
            self._sum_up()

    def end(self) -> None:
        """End the recording after the last step."""
        self._sum_up()
        self._spans.stop()
        if self._events is not None:
            self._events.recorder = None
        if (driver := self._driver) is not None and driver.recorder is self._steps_demand:
            driver.recorder = None
        self._experts = None  # The recording may outlive the engine.

    def _observe_experts(self, experts: _core.Experts, step: _core.Step) -> None:
        """Record demand, costs, thresholds and residency."""
        self._steps_unseen += 1
        if self._steps_unseen == self._look_every:
            self._look(experts)
        self._demand += step.demand
        self._costs.append(step.layer_costs.copy())
        if self._steps_demand is not None:
            self._steps_demand.verified(step, experts.routes())
        scheduler = self._driver.scheduler if self._driver is not None else None
        levels, threshold = getattr(scheduler, "n_level", None), getattr(scheduler, "threshold", None)
        if levels is not None and threshold is not None:
            self._levels = levels
            self._taus.append(threshold.copy())

    @property
    def _driver(self) -> Driver | None:
        return self._events.driver if self._events is not None else None

    def _look(self, experts: _core.Experts) -> None:
        """Record which experts are resident, and which of them were not at the last look."""
        absent = experts.residency() >> 31
        self._away -= absent
        self._arrivals -= self._absent & ~absent
        self._absent = absent
        self._n_look += 1
        self._steps_unseen = 0

    def _expected(self) -> list[float]:
        """Record the governor's model, and return expected_tokens and expected_ns."""
        if self._governor is None:
            return [0, 0]
        if (curve := getattr(self._governor, "curve", None)) is not None:
            self._curve = curve
        expected = self._governor.expected
        return [0, 0] if expected is None else [expected[0], expected[1] * 1e9]

    def _sum_up(self) -> None:
        """Add to the sums the parts of the last steps that are cheaper to add for several steps at once."""
        if self._costs:
            costs = np.stack(self._costs)
            for name in costs.dtype.names or ():
                self._by_layer[name] = self._by_layer.get(name, 0) + costs[name].sum(0, dtype=np.int64)
        for device_ns in self._traced():
            self._traced_steps.add((device_ns,))
        for tau in self._taus:
            if self._thresholds is None:
                self._thresholds = Series(len(tau), LAYER_ROWS)
            self._thresholds.add(tau)
        self._taus.clear()
        self._costs.clear()
        self._ends.clear()

    def _traced(self) -> Float64Array:
        """Return device_ns of each of the last steps, by the time at which a span ended."""
        n, spans = len(self._ends), self._spans.take()
        if not n:
            return np.zeros(n)
        at = np.minimum(np.searchsorted(self._ends, spans["end_ns"]), n - 1)
        took = (spans["end_ns"] - spans["start_ns"]).astype(float)
        chosen = self._spans.of(spans, "device_part")
        if not spans["ok"][chosen].all():
            self._device = "at most"
        return np.bincount(at, took * chosen, n).astype(float)

    # The recording

    def report(self, stats: RunStats) -> dict[str, Any]:
        """Return the content of the report."""
        self._sum_up()
        rows = np.hstack((self._steps.rows, self._traced_steps.rows))
        columns = {name: _short(rows[:, i]) for i, name in enumerate(COLUMNS)}
        return {
            "format": FORMAT,
            "schema": SCHEMA,
            "version": __version__,
            "started": self._started.isoformat(timespec="seconds") if self._started is not None else None,
            "stats": asdict(stats),
            "steps": {"per_row": self._steps.per_row, "columns": columns},
            "lengths": {name: [row[i] for row in self._lengths] for i, name in enumerate(LENGTHS)},
            "experts": self._experts_recorded(),
            "thresholds": self._thresholds_recorded(),
            "governor": self._governor_recorded(),
            "device": self._device,
            "activities": self._spans.activities,
            "dropped": self._spans.n_dropped,
        }

    @property
    def demand(self) -> Demand | None:
        """The demand of the steps; None if it is not kept, and without experts or steps."""
        return self._steps_demand.demand if self._steps_demand is not None else None

    def write(self, stats: RunStats) -> None:
        """Write the file, whole or not at all, or raise InputError."""
        assert self.path is not None
        report, demand, data = self.report(stats), self.demand, io.BytesIO()
        np.savez_compressed(data, spans=self._spans.array, **(demand.arrays if demand is not None else {}))
        with zipfile.ZipFile(data, "a", zipfile.ZIP_DEFLATED) as file:
            file.writestr(REPORT, json.dumps(report, separators=(",", ":")))
        write_atomically(self.path, data.getvalue())

    def _experts_recorded(self) -> dict[str, Any] | None:
        if self._model is None:
            return None
        return {
            **self._model,
            "by_layer": {name: sums.tolist() for name, sums in self._by_layer.items()},
            "looks": self._n_look,
            "demand": encoded(self._demand),
            "resident": encoded(self._n_look - self._away),
            "arrivals": encoded(self._arrivals),
        }

    def _thresholds_recorded(self) -> dict[str, Any] | None:
        series = self._thresholds
        if series is None:
            return None
        sums = series.rows.astype(np.int64).tolist()
        return {"levels": self._levels, **series.described, "sums": sums}

    def _governor_recorded(self) -> dict[str, Any] | None:
        if self._governor is None:
            return None
        recorded: dict[str, Any] = {"name": self._governor.name, "curve": None}
        if self._curve is not None:
            curve = self._curve
            named = {"tokens": curve.tokens, "compute_s": curve.compute, "theta": curve.theta}
            recorded["curve"] = {name: _short(values) for name, values in named.items()}
        return recorded


def _described(experts: _core.Experts) -> dict[str, Any]:
    names = ("name", "n_expert", "expert_bytes", "pool", "device")
    return {
        "devices": [device.name for device in experts.devices],
        "layers": [{name: getattr(layer, name) for name in names} for layer in experts.layers],
        "n_expert": experts.n_expert,
        "pool_slots": experts.pool_slots,
    }


def _short(values: npt.NDArray[Any]) -> list[float]:
    """Return whole numbers as they are, and others with six digits."""
    return [int(v) if v == int(v) else float(f"{v:.6g}") for v in np.nan_to_num(values).tolist()]


def encoded(matrix: npt.NDArray[Any]) -> str:
    """Return a matrix [L, N] in the file's form: int32, little-endian, in base64."""
    return base64.b64encode(np.minimum(matrix, 2**31 - 1).astype("<i4").tobytes()).decode()
