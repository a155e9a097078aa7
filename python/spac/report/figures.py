"""The figures of a page, computed from a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

import numpy as np

from spac.machine.arrays import Float64Array
from spac.report.reading import Recording
from spac.stats.recording import COLUMNS


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
    draft = c["draft_ns"] + c["observe_ns"]
    known = draft + np.maximum(c["verify_ns"], within) + c["sample_ns"] + c["scheduler_ns"]
    scale = np.minimum(1, c["time_ns"] / np.maximum(known, 1))
    rest = np.maximum(c["time_ns"] - known, 0)
    return [
        Part(name, explanation, ns * scale)
        for name, explanation, ns in (
            ("Draft", "the draft model, or the n-gram draft", draft),
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
            ("CPU experts", "experts that were not resident", c["host_compute_ns"]),
            ("Launches and copies", "calls that queue the device's work", c["queue_ns"]),
            ("Sampling", "choosing and checking tokens", c["sample_ns"]),
            ("Scheduler", "deciding what is resident", c["scheduler_ns"]),
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
