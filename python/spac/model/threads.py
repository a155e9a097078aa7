"""The number of CPU threads that compute a token, measured once per machine and kept.

The experts of one token are read from memory once and used once. If a few threads already read as fast as
memory allows, more threads gain nothing, and they wait for each other after every matrix. If memory is fast,
all cores are needed. So the number is measured, with experts of the model's most frequent type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from spac import _core
from spac.model import kernels
from spac.model.gguf.info import ModelInfo
from spac.model.kept_times import KeptTimes
from spac.model.kernels import ggml_name

SECONDS = 0.15
"""Seconds of measurement."""
CLOSE = 1.02
"""Fewer threads are used if they take at most this many times the shortest time."""
Times = Mapping[int, float]
"""Seconds for the same work, by the number of threads."""


def fit_to_cpu(models: Sequence[ModelInfo], given: int, most: int, *, measure: bool = True) -> int:
    """Choose the kernels for the types of these models, and return the number of threads for a token.

    `given` is the user's number, 0 without one. Otherwise `most` is the largest number, which is returned if
    `measure` is False. The measurement uses the experts of the first model.
    """
    types = [kind for info in models for kind in info.types]
    kernels.choose(types, given or most)
    if given or not measure:
        return given or most
    if (threads := fastest_threads(models[0], most)) != most:
        kernels.choose(types, threads)
    return threads


def fastest_threads(info: ModelInfo, most: int) -> int:
    """Return the number of threads, at most `most`, that compute a token of this model fastest.

    It is the smallest of the numbers that are about equally fast. Nothing is measured for a model without
    quantized weights or for fewer than 2 threads: the result is `most`.
    """
    kind = most_read_type(info)
    if most < 2 or kind is None:
        return most
    return fastest(measured(kind, candidates(most)))


def candidates(most: int) -> list[int]:
    """Return the numbers of threads to try: half, three quarters, all but one, and all of `most`."""
    return sorted({max(1, count) for count in (most // 2, most * 3 // 4, most - 1, most)})


def fastest(times: Times) -> int:
    """Return the smallest number of threads that is about as fast as the fastest."""
    return min(count for count, seconds in times.items() if seconds <= CLOSE * min(times.values()))


def most_read_type(info: ModelInfo) -> str | None:
    """Return ggml's name of the quantized type with the most bytes of a model's experts; None without one.

    In a model without experts, the bytes of all weights count.
    """
    n_bytes = {ggml_name(kind): size for kind, size in (info.expert_types or info.types).items()}
    known = _core.quantized_cpu_types(list(n_bytes))
    return max(known, key=lambda kind: n_bytes[kind], default=None)


def measured(kind: str, counts: list[int]) -> Times:
    """Return the times of these numbers of threads, from the cache or else from a measurement.

    The last number must be the largest.
    """

    def measure(_missing: list[str]) -> tuple[dict[str, Times], float]:
        seconds, running = _core.time_threads(kind, counts, SECONDS)
        return {kind: dict(zip(counts, seconds, strict=True))}, running

    return KEPT.measured([kind], counts[-1], measure, lambda _kind, times: list(times) == counts)[kind]


def _checked(times: Any) -> Times | None:
    """Return the times with integer keys, which JSON stores as text; None if an entry is unusable."""
    if not isinstance(times, dict) or not times:
        return None
    usable = all(
        isinstance(count, str) and count.isdecimal() and isinstance(x, float) and isfinite(x) and x > 0
        for count, x in times.items()
    )
    return {int(count): x for count, x in times.items()} if usable else None


KEPT = KeptTimes("-threads", _checked)
