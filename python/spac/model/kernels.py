"""The choice of the CPU's kernels for each type of weights, by one trial per machine, whose times are kept.

A product of quantized weights can be computed in up to three ways: by llama.cpp's own functions ("ggml"), or
by spac's kernels with vectors of 256 or of 512 bits. All give the same results, bit for bit. The fastest one
depends on the CPU and on the type, and differs between one row of input and several. For dense matrices and
several rows, llama.cpp has further kernels for some types ("dense"), which are compared with them.

llama.cpp can also copy ("repack") weights into a layout of its own. Its kernels for that were slower than
spac's wherever whole models were compared, so they are used only for types without kernels of spac's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from spac import _core, env
from spac.model.gguf.info import ModelInfo
from spac.model.kept_times import KeptTimes, Key

SECONDS = 0.1
"""Seconds of measurement for each type."""
LEAST_GAIN = 1.03
"""A way must be this many times as fast as llama.cpp's own.

The measurement cannot tell ways of nearly equal speed apart, and a wrong choice would lose time.
"""
Times = Mapping[str, Sequence[float]]
"""Seconds for the same weights with one row of input, and with two and eight together ([2]), by way.

"dense" has those of llama.cpp's kernels for dense matrices, if their results are the same. There are none for
one row, so its first is 0.
"""
Choice = tuple[str, str, bool]
"""The ways for one row and for several, and True if the latter computes dense matrices too."""


def choose(types: Iterable[str], threads: int) -> dict[str, Choice]:
    """Make the CPU compute with the fastest ways for these types, and return them.

    The types' names are GGUF's or ggml's. Types without kept times are measured with this number of threads,
    which takes about a quarter of a second each. Types without kernels are left out. Nothing is measured with
    SPAC_CPU_KERNELS=0.
    """
    names = {ggml_name(kind) for kind in types}
    wanted = [kind for kind in _core.trusted_cpu_kernels() if kind in names]
    if env.CPU_KERNELS.get() is not False:
        for kind, times in measured(wanted, threads).items():
            _core.choose_cpu_kernels(kind, *fastest(times))
    return {kind: _core.chosen_cpu_kernels(kind) for kind in wanted}


def repacks(info: ModelInfo) -> bool:
    """Return True if llama.cpp should repack the weights of this model, with experts on the CPU alone."""
    ours = _core.trusted_cpu_kernels() if _core.cpu_kernels_enabled() else []
    return not any(ggml_name(kind) in ours for kind in info.expert_types)


def ggml_name(kind: str) -> str:
    """Return ggml's name of a type from GGUF's name: "q4_K" for "Q4_K", "iq4_xs" for "IQ4_XS"."""
    name = kind.lower()
    return f"{name[:-1]}K" if name.endswith("_k") else name


def fastest(times: Times) -> Choice:
    """Return the fastest ways. llama.cpp's own stay unless others gain enough."""
    allowance = {way: 1.0 if way == "ggml" else LEAST_GAIN for way in times if way != "dense"}
    one, several = (min(allowance, key=lambda way: times[way][i] * allowance[way]) for i in range(2))
    return one, several, times.get("dense", [0, 0])[1] > LEAST_GAIN * times[several][1]


def measured(types: list[str], threads: int) -> dict[str, Times]:
    """Return the times of these types, from the cache or else from the trial."""
    return KEPT.measured(types, threads, lambda missing: _core.time_cpu_kernels(missing, threads, SECONDS))


def kept(threads: int) -> list[str]:
    """Return the types that have kept times with this number of threads."""
    return list(KEPT.load(Key.of(threads)))


def _checked(times: Any) -> Times | None:
    usable = (
        isinstance(times, dict)
        and "ggml" in times
        and set(times) <= {"ggml", "256", "512", "dense"}
        and all(isinstance(row, list) and len(row) == 2 for row in times.values())
        and all(isinstance(x, float) for row in times.values() for x in row)
        and all(x > 0 for way, row in times.items() for x in (row[1:] if way == "dense" else row))
    )
    return times if usable else None


KEPT = KeptTimes("", _checked)


def described(choices: Mapping[str, Choice]) -> str:
    """Return the ways of each type as text, such as "q4_K 512; q6_K ggml for one token, 512 for several".

    The types whose dense matrices llama.cpp multiplies with kernels of its own follow.
    """
    ways = "; ".join(
        f"{kind} {one}" if one == several else f"{kind} {one} for one token, {several} for several"
        for kind, (one, several, _) in choices.items()
    )
    dense = [kind for kind, (_, _, ours) in choices.items() if not ours]
    return ways + (f"; llama.cpp's for dense matrices of {', '.join(dense)}" if dense else "")
