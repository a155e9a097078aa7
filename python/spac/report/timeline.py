"""The timeline of a recording, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

The format is the Trace Event Format's JSON object. Complete events ("X") nest on their track, and instant
events show evictions. Some devices do not report when they compute. Pairs of asynchronous events show their
work, from the launch until its end was observed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any

import numpy as np

from spac.report.figures import Recording, file_name
from spac.stats.words import counted

Entry = dict[str, Any]

PROCESS = 1
TRACKS = ("session", "scheduler", "CPU", "device", "copies")
"""The names of the tracks, in the order in which they are shown; their thread ids count from 1.

Other tracks follow them if they have spans: the steps, draft worker, and copies of prefill streaming.
"""
_TRACK_OF = {
    **dict.fromkeys(("prefill", "draft", "verify", "observe", "sample"), "session"),
    **dict.fromkeys(("layer", "host_wait", "host_experts"), "CPU"), "device_part": "device",
    "copy": "copies", "evict": "copies", "fill": "prompts' copies",
}  # fmt: skip
_TITLES = {
    "prefill": "prompt", "observe": "statistics and governor", "host_wait": "wait", "host_experts": "experts",
    "device_part": "experts", "fill": "a layer's experts",
}  # fmt: skip
_COUNTS = {
    "prefill": "tokens", "draft": "drafted", "verify": "tokens", "observe": "tokens", "sample": "accepted",
    "layer": "tokens", "host_experts": "activations",
}  # fmt: skip
"""The meaning of the field `count` for each activity."""


def timeline(recording: Recording) -> bytes:
    """Return the timeline's file."""
    stats, activities, spans = recording.stats, recording.content["activities"], recording.spans
    seen = {_place(activities[i])[0] for i in np.unique(spans["activity"])}
    tracks = [*TRACKS, *sorted(seen.difference(TRACKS))]
    about = {"target": file_name(stats["target"]), "dropped": recording.content["dropped"]}
    about |= {name: stats[name] for name in ("device", "scheduler")}
    events = chain(_metadata(tracks), _events(spans, activities, tracks))
    lines = ",\n".join(map(json.dumps, events))
    return (
        f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about)},"traceEvents":[\n{lines}\n]}}\n'.encode()
    )


def _place(activity: str) -> tuple[str, str]:
    """Return the track and the title of an activity."""
    if activity in _TRACK_OF:
        return _TRACK_OF[activity], _TITLES.get(activity, activity)
    track, _, title = activity.partition(": ")
    return track, title


def _events(spans: Any, activities: list[str], tracks: list[str]) -> Iterator[Entry]:
    # A span that contains others comes before them.
    spans = spans[np.lexsort((spans["activity"], -spans["end_ns"], spans["start_ns"]))]
    rows = (dict(zip(spans.dtype.names, row, strict=True)) for row in spans.tolist())
    for key, group in groupby(rows, lambda row: (row["activity"], row["start_ns"], row["end_ns"])):
        activity = activities[key[0]]
        track, title = _place(activity)
        event = {"name": title, "cat": activity if activity in _TRACK_OF else track, "ph": "X"}
        event |= {"pid": PROCESS, "tid": 1 + tracks.index(track), "ts": key[1] / 1e3}
        event["dur"] = (key[2] - key[1]) / 1e3
        if activity == "copy":
            yield event | _copies(list(group))
            continue
        for row in group:
            yield from _event(activity, dict(event), row)


def _event(activity: str, event: Entry, row: Entry) -> Iterator[Entry]:
    shown = {name: name for name in ("layer", "expert", "pool")} | {"distinct": "experts"}
    if activity in _COUNTS:
        shown["count"] = _COUNTS[activity]
    event["args"] = {name: row[of] for of, name in shown.items() if row[of] >= 0}
    if activity == "fill":
        event["args"]["bytes"] = row["bytes"]
    if activity == "layer":
        event["name"] = f"layer {row['layer']}" if row["layer"] >= 0 else "layer that is not split"
    if activity == "evict":
        del event["dur"]
        yield event | {"ph": "i", "s": "t"}
    elif row["ok"] == 0:
        duration = event.pop("dur")
        event |= {"name": f"{event['name']}, at most", "id": row["start_ns"]}
        yield event | {"ph": "b"}
        yield event | {"ph": "e", "ts": event["ts"] + duration, "args": {}}
    else:
        yield event


def _copies(group: list[Entry]) -> Entry:
    """Return the name and the arguments of a batch of copies."""
    args = {
        "bytes": sum(row["bytes"] for row in group),
        "experts": [f"layer {row['layer']} expert {row['expert']} pool {row['pool']}" for row in group],
        "failed": (failed := group[0]["ok"] == 0),
    }
    return {"name": counted(len(group), "expert") + (" (failed)" if failed else ""), "args": args}


def _metadata(tracks: list[str]) -> Iterator[Entry]:
    """Yield the events that name the process and the tracks, and order the tracks."""
    base: Entry = {"ph": "M", "pid": PROCESS}
    yield base | {"name": "process_name", "args": {"name": "spac"}}
    for i, track in enumerate(tracks, 1):
        yield base | {"name": "thread_name", "tid": i, "args": {"name": track}}
        yield base | {"name": "thread_sort_index", "tid": i, "args": {"sort_index": i}}
