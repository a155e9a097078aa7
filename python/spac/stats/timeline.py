"""The timeline of a run as a file that Perfetto (ui.perfetto.dev) and chrome://tracing open.

The mechanism records its own work (`spac._core.Trace`), and programs add theirs with `Timeline.add`. All
times are from one clock, `time.monotonic_ns`. The format is the Trace Event Format's JSON object. Complete
events ("X") nest on their track, and instant events show evictions. Some devices do not report when they
compute. Pairs of asynchronous events show their work, from the launch until its end was observed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import numpy as np

from spac.machine.files import check_writable, replacing
from spac.stats.words import counted

if TYPE_CHECKING:
    import spac._core as _core

Entry = dict[str, Any]

CAPACITY = 1 << 18
"""The largest number of spans; when it is reached, the earliest stay.

It covers some thousand steps of a model with 48 MoE layers, in a file of about 40 MB.
"""

PROCESS = 1
TRACKS = ("session", "scheduler", "CPU", "device", "copies")
"""The names of the tracks, in the order in which they are shown; their thread ids count from 1.

Other tracks follow them if they have spans: those of programs, and the copies of prefill streaming.
"""
_TRACK_OF = {
    **dict.fromkeys(("prefill", "draft", "verify", "observe", "sample"), "session"),
    **dict.fromkeys(("layer", "host_wait", "host_experts"), "CPU"), "device_part": "device",
    "copy": "copies", "evict": "copies", "fill": "prompts' copies",
}  # fmt: skip
_TITLES = {
    "prefill": "prompt", "observe": "draft model reads on", "host_wait": "wait", "host_experts": "experts",
    "device_part": "experts", "fill": "a layer's experts",
}  # fmt: skip
_FIELDS = {
    "prefill": {"count": "tokens"},
    "draft": {"count": "drafted"},
    "verify": {"count": "tokens"},
    "observe": {"count": "tokens"},
    "sample": {"count": "accepted"},
    "layer": {"layer": "layer", "count": "tokens"},
    "host_wait": {"layer": "layer"},
    "host_experts": {"layer": "layer", "count": "activations", "distinct": "experts"},
    "device_part": {"layer": "layer"},
    "evict": {"layer": "layer", "expert": "expert", "pool": "pool"},
    "fill": {"layer": "layer", "bytes": "bytes"},
}


class Work(NamedTuple):
    """A span that a program adds."""

    track: str
    name: str
    start_ns: int
    end_ns: int
    args: Entry


class Timeline:
    """A timeline that records with `trace` until it is written.

    Any thread may be recorded, but only one thread may call the methods.
    """

    def __init__(self, path: Path | str, trace: _core.Trace, capacity: int = CAPACITY) -> None:
        """Start recording at most `capacity` spans; `write` writes the file.

        Raise InputError if the file cannot be written.
        """
        self.path = Path(path)
        check_writable(self.path)
        self._trace, self._capacity = trace, capacity
        self._work: list[Work] = []
        self._lost = 0
        self._tracks = list(TRACKS)
        self._origin = time.monotonic_ns()
        trace.start(capacity)

    @property
    def dropped(self) -> int:
        """The number of spans that were lost because the timeline was full."""
        return self._trace.dropped + self._lost

    def add(self, track: str, name: str, start_ns: int, end_ns: int, **args: Any) -> None:
        """Add a program's own span; on one track, spans nest or follow each other."""
        if len(self._work) < self._capacity:
            self._work.append(Work(track, name, start_ns, end_ns, args))
        else:
            self._lost += 1

    def write(self, about: Entry) -> None:
        """Stop recording and write the file, whole or not at all, with the entries of `about`.

        Raise InputError if that fails.
        """
        self._trace.stop()
        spans = self._trace.take()
        other = {**about, "dropped": self.dropped}
        with replacing(self.path) as file:
            self._write(file, spans, other)

    def _write(self, file: BinaryIO, spans: Any, about: Entry) -> None:
        from spac import _core

        recorded = {_TRACK_OF[_core.ACTIVITIES[i]] for i in np.unique(spans["activity"])}
        others = recorded.union(work.track for work in self._work).difference(TRACKS)
        self._tracks = [*TRACKS, *sorted(others)]
        file.write(b'{"displayTimeUnit":"ms","otherData":%b,"traceEvents":[' % json.dumps(about).encode())
        separator = "\n"
        for event in chain(_metadata(self._tracks), self._added(), self._recorded(spans)):
            file.write((separator + json.dumps(event)).encode())
            separator = ",\n"
        file.write(b"\n]}\n")

    def _added(self) -> Iterator[Entry]:
        # A span that contains others comes before them.
        for work in sorted(self._work, key=lambda work: (work.start_ns, -work.end_ns)):
            yield self._complete(work.name, work.track, work.start_ns, work.end_ns, work.args)

    def _recorded(self, spans: Any) -> Iterator[Entry]:
        from spac import _core

        spans = spans[np.lexsort((spans["activity"], -spans["end_ns"], spans["start_ns"]))]
        for key, group in groupby(
            _rows(spans), lambda row: (row["activity"], row["start_ns"], row["end_ns"])
        ):
            name = _core.ACTIVITIES[key[0]]
            if name == "copy":
                yield self._copies(list(group))
                continue
            for row in group:
                yield from self._event(name, row)

    def _event(self, name: str, row: Entry) -> Iterator[Entry]:
        args = {shown: row[field] for field, shown in _FIELDS[name].items() if row[field] >= 0}
        title, track = _TITLES.get(name, name), _TRACK_OF[name]
        if name == "layer":
            title = f"layer {row['layer']}" if row["layer"] >= 0 else "layer that is not split"
        event = self._complete(title, track, row["start_ns"], row["end_ns"], args)
        event["cat"] = name
        if name == "evict":
            del event["dur"]
            yield event | {"ph": "i", "s": "t"}
        elif row["ok"] == 0:
            duration = event.pop("dur")
            event |= {"name": f"{title}, at most", "id": row["start_ns"]}
            yield event | {"ph": "b"}
            yield event | {"ph": "e", "ts": event["ts"] + duration, "args": {}}
        else:
            yield event

    def _copies(self, group: list[Entry]) -> Entry:
        """Return one event for a batch of copies."""
        args = {
            "bytes": sum(row["bytes"] for row in group),
            "experts": [f"layer {row['layer']} expert {row['expert']} pool {row['pool']}" for row in group],
            "failed": (failed := group[0]["ok"] == 0),
        }
        title = counted(len(group), "expert") + (" (failed)" if failed else "")
        event = self._complete(title, "copies", group[0]["start_ns"], group[0]["end_ns"], args)
        return event | {"cat": "copy"}

    def _complete(self, name: str, track: str, start_ns: int, end_ns: int, args: Entry) -> Entry:
        return {
            "name": name,
            "cat": track,
            "ph": "X",
            "pid": PROCESS,
            "tid": 1 + self._tracks.index(track),
            "ts": (start_ns - self._origin) / 1e3,
            "dur": (end_ns - start_ns) / 1e3,
            "args": args,
        }


def _rows(spans: Any) -> Iterator[Entry]:
    """Yield records as dicts, converted in parts, because all of a long run need hundreds of megabytes."""
    names = spans.dtype.names
    for start in range(0, len(spans), 4096):
        for row in spans[start : start + 4096].tolist():
            yield dict(zip(names, row, strict=True))


def _metadata(tracks: list[str]) -> list[Entry]:
    """Return the events that name the process and the tracks, and order the tracks."""
    base: Entry = {"ph": "M", "pid": PROCESS}
    events = [base | {"name": "process_name", "args": {"name": "spac"}}]
    for i, track in enumerate(tracks, 1):
        events.append(base | {"name": "thread_name", "tid": i, "args": {"name": track}})
        events.append(base | {"name": "thread_sort_index", "tid": i, "args": {"sort_index": i}})
    return events
