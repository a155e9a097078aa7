"""Print how long a layer's hand-off takes on the card's side, from a profile that step_profile wrote.

    python -m bench.gpu_suite.layer_phases PROFILE.json.gz …

Times are microseconds between kernels of the compute stream, by layer. The first phase is from the end of the
dense part until the host has its input. The last one is from the arrival of the host's rows until they are
joined. The wait lies between.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path
from statistics import mean, median

from bench.gpu_suite.step_profile import Event

LOOKUP = "k_get_rows_float<int, int>"  # looks slots up by ids; it also runs in place of copies to the host
JOINS = ("k_bin_bcast", "take_from_host")
SENDS = ("k_get_rows", "send_to_host")  # ggml's kernels in place of copies to the host, and spac's own


def _is_copy(event: Event, way: str = "") -> bool:
    return event[0].startswith(f"Memcpy {way}")


def _end(event: Event) -> int:
    return event[2] + event[3]


def phases(events: list[Event]) -> dict[str, list[float]]:
    """Return each phase's times in microseconds, one a layer; `events` are sorted by their start.

    Without events, there are no phases.
    """
    streams: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        streams[event[1]].append(event)
    stream = max(streams.values(), key=len, default=[])
    found: dict[str, list[float]] = defaultdict(list)
    for i, event in enumerate(stream[:-1]):
        if LOOKUP not in event[0] or "quantize" not in stream[i + 1][0]:
            continue  # this event looks no slots up
        arrived = i - 1
        while arrived > 0 and _is_copy(stream[arrived], "HtoD"):
            arrived -= 1  # skips the mask's row
        dense = arrived
        while dense > 0 and (_is_copy(stream[dense]) or any(name in stream[dense][0] for name in SENDS)):
            dense -= 1
        joins = (j for j in range(i + 1, len(stream)) if any(name in stream[j][0] for name in JOINS))
        join = next(joins, None)
        if join is None:
            break
        rows = join - 1 if _is_copy(stream[join - 1], "HtoD") else join
        found["dense part's end → the host has it"].append(
            (_end(stream[arrived]) - _end(stream[dense])) / 1e3
        )
        found["rows begin to come → joined"].append((_end(stream[join]) - stream[rows][2]) / 1e3)
        found["device part's end → rows begin to come"].append(
            (stream[rows][2] - _end(stream[rows - 1])) / 1e3
        )
    return found


def main(paths: list[str]) -> int:
    """Print a table for each profile; return the exit code."""
    for path in map(Path, paths):
        with gzip.open(path, "rt") as file:
            profile = json.load(file)
        steps = profile["job"]["steps"]
        print(f"{path.name}: {profile['seconds'] / steps * 1e3:.1f} ms a step without the profiler")
        for name, times in phases([tuple(event) for event in profile["events"]]).items():
            print(
                f"  {name:<42} median {median(times):7.1f} µs, mean {mean(times):7.1f}, {len(times)} layers"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
