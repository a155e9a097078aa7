"""The choice of the CPU's kernels for each type of weights, measured once per machine and kept.

A product of quantized weights with 1 to 8 rows of input can be computed in up to three ways: by llama.cpp's
own functions ("ggml"), or by spac's kernels with vectors of 256 or of 512 bits. All give the same results,
bit for bit. The fastest one depends on the CPU, on the type and on the number of rows. For dense matrices and
several rows, llama.cpp has further kernels for some types ("dense"), which are compared with them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from spac import _core, env
from spac.model.kept_times import KeptTimes, Key

SECONDS = 0.1
"""Seconds of measurement for each type."""
LEAST_GAIN = 1.03
"""A way must be this many times as fast as llama.cpp's own.

The measurement cannot tell ways of nearly equal speed apart, and a wrong choice would lose time.
"""
Times = Mapping[str, list[float]]
"""Seconds for the same weights with 1 to 8 rows of input ([8]), by way.

"dense" has those of llama.cpp's kernels for dense matrices, if their results are the same. There are none for
one row, so its first is 0.
"""


def choose(types: Iterable[str], threads: int) -> dict[str, list[str]]:
    """Make the CPU compute with the fastest way for these types, and return the ways for 1 to 8 rows.

    The types' names are GGUF's or ggml's. Types without a kept measurement are measured with this number of
    threads, which takes about a quarter of a second each. Types without kernels are left out. Nothing is
    measured if SPAC_CPU_KERNELS fixes a way.
    """
    names = {ggml_name(kind) for kind in types}
    wanted = [kind for kind in _core.trusted_cpu_kernels() if kind in names]
    if env.CPU_KERNELS.get() in (None, "1"):
        for kind, times in measured(wanted, threads).items():
            _core.choose_cpu_kernels(kind, fastest(times), faster_than_dense(times))
    return {kind: _core.chosen_cpu_kernels(kind) for kind in wanted}


def ggml_name(kind: str) -> str:
    """Return ggml's name of a type from GGUF's name: "q4_K" for "Q4_K", "iq4_xs" for "IQ4_XS"."""
    name = kind.lower()
    return f"{name[:-1]}K" if name.endswith("_k") else name


def fastest(times: Times) -> list[str]:
    """Return the fastest way for each number of rows. It is llama.cpp's own unless another gains enough."""
    allowance = {way: 1.0 if way == "ggml" else LEAST_GAIN for way in times if way != "dense"}
    n_rows = min(len(times[way]) for way in allowance)
    return [min(allowance, key=lambda way: times[way][i] * allowance[way]) for i in range(n_rows)]


def faster_than_dense(times: Times) -> list[bool]:
    """Return for each number of rows if the fastest way is faster enough than "dense".

    Return an empty list if llama.cpp has none with the same results.
    """
    if "dense" not in times:
        return []
    return [times["dense"][i] > LEAST_GAIN * times[way][i] for i, way in enumerate(fastest(times))]


def measured(types: list[str], threads: int) -> dict[str, Times]:
    """Return the times of these types, from the cache or else from a measurement."""
    return KEPT.measured(types, threads, lambda missing: _core.time_cpu_kernels(missing, threads, SECONDS))


def kept(threads: int) -> list[str]:
    """Return the types that have a kept measurement with this number of threads."""
    return list(KEPT.load(Key.of(threads)))


def _checked(times: Any) -> Times | None:
    usable = (
        isinstance(times, dict)
        and "ggml" in times
        and set(times) <= {"ggml", "256", "512", "dense"}
        and all(isinstance(row, list) and len(row) == 8 for row in times.values())
        and all(isinstance(x, float) for row in times.values() for x in row)
        and all(x > 0 for way, row in times.items() for x in (row[1:] if way == "dense" else row))
    )
    return times if usable else None


KEPT = KeptTimes("", _checked)


def described(ways: Mapping[str, list[str]]) -> str:
    """Return the ways of each type as text, such as "q4_K 512; q6_K ggml for 1, 512 for 2-8"."""
    return "; ".join(f"{kind} {_runs(row)}" for kind, row in ways.items())


def described_dense(dense: Mapping[str, list[bool]]) -> str:
    """Return who multiplies dense matrices, such as "q8_0 spac's for 1-4, llama.cpp's for 5-8".

    `dense` has True for the numbers of rows, 1 to 8, that the type's ways multiply. Types whose ways multiply
    all are left out.
    """
    rows = {
        kind: ["spac's" if ours else "llama.cpp's" for ours in row]
        for kind, row in dense.items()
        if not all(row)
    }
    return described(rows)


def _runs(row: list[str]) -> str:
    """Return runs of equal ways as text, with the first and last number of rows of each."""
    parts, start = [], 0
    for i in range(1, len(row) + 1):
        if i == len(row) or row[i] != row[start]:
            rows = f"{start + 1}" if i == start + 1 else f"{start + 1}-{i}"
            parts.append(row[start] if i - start == len(row) else f"{row[start]} for {rows}")
            start = i
    return ", ".join(parts)
