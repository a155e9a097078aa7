"""The spans of a recording: what ran when, from the mechanism and from programs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import spac._core as _core

CAPACITY = 1 << 18
"""The largest number of spans in a recording: some thousand steps of a model with 48 MoE layers."""
BATCH_SPANS = 1 << 16  # most spans between two calls of `take`
SPAN_TYPE = np.dtype(
    [(name, np.int64) for name in ("start_ns", "end_ns", "bytes")]
    + [(name, np.int32) for name in ("activity", "layer", "expert", "pool", "count", "distinct", "ok")]
)
"""The type of a span; `csrc/core/trace.h` has the fields. Times are from the beginning of the recording."""
SpanArray = npt.NDArray[np.void]


class Spans:
    """Collects spans from `begin` until `stop`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}  # the number of each activity by its name
        self._added: list[tuple[str, int, int]] = []  # the name, start and end of programs' spans
        self._kept: list[SpanArray] = []
        self._n_kept = 0
        self.n_dropped = 0
        """The number of spans that were left out; the first `CAPACITY` are kept."""
        self._trace: _core.Trace | None = None
        self._origin = 0

    def begin(self, trace: _core.Trace) -> None:
        """Begin. `trace` records the mechanism's spans."""
        from spac import _core

        self._numbers = {name: i for i, name in enumerate(_core.ACTIVITIES)}
        self._origin, self._trace = time.monotonic_ns(), trace
        trace.start(BATCH_SPANS)

    @property
    def activities(self) -> list[str]:
        """The names of the activities by their numbers; "track: name" for those of programs."""
        return list(self._numbers)

    @property
    def is_full(self) -> bool:
        """True if `take` has to be called soon."""
        return self._trace is not None and len(self._trace) > BATCH_SPANS // 2

    def add(self, track: str, name: str, start_ns: int, end_ns: int) -> None:
        """Add a program's own span, from any thread; on one track, spans nest or follow each other."""
        if self._trace is not None:
            self._added.append((f"{track}: {name}", start_ns, end_ns))

    def take(self) -> SpanArray:
        """Keep the spans since the last call, and return those of the mechanism."""
        if self._trace is None:
            return np.empty(0, SPAN_TYPE)
        spans = self._trace.take().astype(SPAN_TYPE)
        added, self._added = self._added, []
        own = np.full(len(added), -1, SPAN_TYPE)
        own["bytes"] = 0
        for row, (name, start, end) in zip(own, added, strict=True):
            number = self._numbers.setdefault(name, len(self._numbers))
            row["start_ns"], row["end_ns"], row["activity"] = start, end, number
        for each in (spans, own):
            kept = each[: CAPACITY - self._n_kept]
            self._kept.append(kept)
            self._n_kept += len(kept)
            self.n_dropped += len(each) - len(kept)
        return spans

    def of(self, spans: SpanArray, activity: str) -> npt.NDArray[np.bool_]:
        """Return which of the spans show an activity of the mechanism."""
        return np.asarray(spans["activity"] == self._numbers[activity])

    def stop(self) -> None:
        """Record no more. A second call does nothing."""
        if self._trace is not None:
            self._trace.stop()
            self.take()
            self.n_dropped += self._trace.dropped
        self._trace = None

    @property
    def array(self) -> SpanArray:
        """All spans that are kept, `SPAN_TYPE` [span]."""
        spans = np.concatenate([np.empty(0, SPAN_TYPE), *self._kept])
        spans["start_ns"] -= self._origin
        spans["end_ns"] -= self._origin
        return spans
