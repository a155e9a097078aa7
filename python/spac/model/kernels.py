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
from contextlib import suppress
from dataclasses import replace
from typing import Any

from spac import _core, env
from spac.costs import store
from spac.errors import InputError
from spac.machine.topology import mixes_kinds, read_cpus
from spac.model.gguf.info import ModelInfo

SECONDS = 0.1
"""Seconds of measurement for each type."""
UNDISTURBED = 0.9
"""The share of the time for which threads must have had their cores. With less, no measurement is kept."""
LEAST_GAIN = 1.03
"""A way must be this many times as fast as llama.cpp's own.

The measurement cannot tell ways of nearly equal speed apart, and a wrong choice would lose time.
"""
Times = Mapping[str, Sequence[float]]
"""Seconds for the same weights with one row of input, and with two and eight together ([2]), by way.

"dense" has those of llama.cpp's kernels for dense matrices, if their results are the same. There are none for
one row, so its first is 0.
"""
_allowed = True  # as the environment said last
Choice = tuple[str, str, bool]
"""The ways for one row and for several, and True if the latter computes dense matrices too."""


def choose(types: Iterable[str], threads: int, notes: list[str] | None = None) -> dict[str, Choice]:
    """Make the CPU compute with the fastest ways for these types, and return them.

    The types' names are GGUF's or ggml's. Types without kept times are measured with this number of threads,
    which takes about a quarter of a second each. Types without kernels are left out. Nothing is measured with
    SPAC_FORM=no-cpu-kernels. `notes` get a line for each file of kept times that cannot be used.
    """
    _core.set_uneven_cores(mixes_kinds(read_cpus(), threads))
    names = {ggml_name(kind) for kind in types}
    wanted = [kind for kind in _core.trusted_cpu_kernels() if kind in names]
    global _allowed
    if (allowed := env.FORM.get("cpu-kernels") is not False) is not _allowed:
        _core.set_cpu_kernels(allowed)
        _allowed = allowed
    if allowed:
        for kind, times in measured(wanted, threads, notes).items():
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


def measured(types: Sequence[str], threads: int, notes: list[str] | None = None) -> dict[str, Times]:
    """Return the times of these types, from the store or else from the trial.

    A trial is not kept if other programs took too much of the cores. The next run measures again then.
    """
    known = kept_times(types, threads, notes)
    if missing := [kind for kind in types if kind not in known]:
        found, running = _core.time_cpu_kernels(missing, threads, SECONDS)
        known |= found
        if running >= UNDISTURBED:
            for kind, key in keys_of(found, threads).items():
                with suppress(InputError):  # A later run can measure again.
                    store.put(key, {"times": found[kind]})
    return {kind: known[kind] for kind in types}


def kept_times(types: Iterable[str], threads: int, notes: list[str] | None = None) -> dict[str, Times]:
    """Return the usable times that are kept of this machine, this build and this number of threads."""
    keys, notes = keys_of(types, threads), notes if notes is not None else []
    entries = {kind: store.get(key, notes) for kind, key in keys.items()}
    times = {kind: _checked(entry.value.get("times")) for kind, entry in entries.items() if entry is not None}
    return {kind: each for kind, each in times.items() if each is not None}


def keys_of(types: Iterable[str], threads: int) -> dict[str, store.Key]:
    """Return the key of each type's times in the store."""
    key = store.Key.of("kernels", threads=threads)
    return {kind: replace(key, more=kind) for kind in types}


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
