"""A recording as it is read from a file, and the figures of a page that are computed from it."""

from __future__ import annotations

import base64
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

import numpy as np

from spac.errors import InputError
from spac.machine.arrays import Float64Array, Int32Array
from spac.machine.files import check_unpacked, read_plain, unreadable
from spac.stats.recording import COLUMNS, FORMAT, REPORT, SCHEMA
from spac.stats.spans import SPAN_TYPE, SpanArray

MATRICES = ("demand", "resident", "arrivals")


@dataclass(frozen=True)
class Recording:
    """The report of a recording, whose parts `spac.stats.recording` describes."""

    content: Mapping[str, Any]
    """The whole content of the report."""
    spans: SpanArray = field(default_factory=lambda: np.empty(0, SPAN_TYPE))
    """The spans, which tell what ran when, `SPAN_TYPE` [span]."""

    @property
    def stats(self) -> Mapping[str, Any]:
        """The run's statistics by name."""
        stats: Mapping[str, Any] = self.content["stats"]
        return stats

    def matrix(self, name: str) -> Int32Array:
        """Return one of the matrices of experts (`MATRICES`), int32 [L, N]."""
        experts = self.content["experts"]
        data = np.frombuffer(base64.b64decode(experts[name]), "<i4")
        return data.reshape(len(experts["layers"]), experts["n_expert"])

    def total(self, column: str) -> float:
        """Return a column's sum over all steps."""
        return float(sum(self.content["steps"]["columns"][column]))


def read(name: str) -> Recording:
    """Return the recording in a file, or in stdin for "-"; raise InputError if it is invalid.

    The archive has a checksum of the report, so its parts are not checked one by one.
    """
    title = "stdin" if name == "-" else name
    try:
        data = sys.stdin.buffer.read() if name == "-" else read_plain(name)
    except (OSError, ValueError) as error:  # a null character in the name raises ValueError
        raise unreadable(title, error) from None
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            check_unpacked(file)
            content = json.loads(file.read(REPORT))
            spans = np.empty(0, SPAN_TYPE)
            if content["schema"] == SCHEMA:
                spans = np.lib.format.read_array(io.BytesIO(file.read("spans.npy")), allow_pickle=False)
    except Exception:  # the readers of archives raise many kinds of errors
        content = None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise InputError(
            f"{title} is not a recording, or is damaged: make one with `spac run --record FILE.npz`"
        )
    if content.get("schema") != SCHEMA:
        raise InputError(
            f"{title} is a recording of schema {content.get('schema')!r}; this spac reads schema {SCHEMA}: "
            "record the run again, or use the spac that recorded it"
        )
    return Recording(content, spans)


@dataclass(frozen=True)
class Part:
    """A part of the steps' time."""

    name: str
    explanation: str
    ns: Float64Array
    """The part's time in nanoseconds, float64 [row]."""


def rows(recording: Recording, n_max: int) -> dict[str, Float64Array]:
    """Return the columns of the steps, float64 [row], by name.

    Neighbouring rows are added up until there are at most `n_max` rows.
    """
    columns = recording.content["steps"]["columns"]
    n = len(columns["steps"])
    starts = np.arange(0, n, max(1, -(-n // n_max)))
    return {
        name: np.add.reduceat(np.array(columns[name], float), starts) if n else np.zeros(0)
        for name in COLUMNS
    }


def rate(part: Float64Array, whole: Float64Array) -> list[float | None]:
    """Return part / whole; None where the whole is not positive."""
    return [p / w if w > 0 else None for p, w in zip(part.tolist(), whole.tolist(), strict=True)]


def smooth(values: Float64Array, width: int) -> Float64Array:
    """Return sums over `width` rows centred on each row; at the ends, the sums cover fewer rows."""
    sums = np.concatenate(([0.0], np.cumsum(values)))
    at = np.arange(len(values))
    low, high = np.maximum(at - width // 2, 0), np.minimum(at + (width + 1) // 2, len(values))
    return np.asarray(sums[high] - sums[low])


def time_parts(columns: Mapping[str, Float64Array]) -> list[Part]:
    """Return the parts of the steps' time; their sum is `time_ns`.

    Parts that were measured at the same time are scaled down where they would exceed it.
    """
    c = columns
    within = c["host_wait_ns"] + c["host_compute_ns"] + c["queue_ns"]
    known = c["draft_ns"] + np.maximum(c["verify_ns"], within) + c["sample_ns"] + c["scheduler_ns"]
    scale = np.minimum(1, c["time_ns"] / np.maximum(known, 1))
    rest = np.maximum(c["time_ns"] - known, 0)
    return [
        Part(name, explanation, ns * scale)
        for name, explanation, ns in (
            ("Draft", "the draft model, or the n-gram draft", c["draft_ns"]),
            (
                "Dense and other",
                "the rest of the verification: attention, dense layers, output",
                np.maximum(c["verify_ns"] - within, 0),
            ),
            (
                "Host waits",
                "the CPU waits for a layer's ids and input: the device is busy",
                c["host_wait_ns"],
            ),
            ("CPU experts", "experts that were not in slots", c["host_compute_ns"]),
            ("Launches and copies", "calls that queue the device's work", c["queue_ns"]),
            ("Sampling", "choosing and checking tokens", c["sample_ns"]),
            ("Scheduler", "deciding what is in slots", c["scheduler_ns"]),
            ("Everything else", "accepting, text, the governor, Python", rest),
        )
    ]


def fixed_hit_rate(recording: Recording) -> float | None:
    """Return the hit rate that the best fixed choice of experts would have had; None without demand.

    The choice has the most activated experts of every pool, as many as the pool has slots.
    """
    if recording.content["experts"] is None or not (demand := recording.matrix("demand")).any():
        return None
    experts = recording.content["experts"]
    pools = np.array([layer["pool"] for layer in experts["layers"]])
    met = 0
    for pool, n_slot in enumerate(experts["pool_slots"]):
        wanted = np.sort(demand[pools == pool].ravel())[::-1]
        met += int(wanted[: int(n_slot)].sum(dtype=np.int64))
    return met / int(demand.sum(dtype=np.int64))


def file_name(path: str | None) -> str | None:
    """Return a model's file name; the page does not show its folder, which is private."""
    return None if path is None else PurePath(path).name or path
