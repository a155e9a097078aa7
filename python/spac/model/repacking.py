"""A measurement that decides if llama.cpp repacks the weights of a model on the CPU alone.

llama.cpp can copy weights of some types into a layout of its own, with kernels of its own. spac's kernels
read weights in the layout of the file. The faster of the two depends on the CPU and on the types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

from spac import _core
from spac.machine import host_memory
from spac.model.gguf.info import ModelInfo
from spac.model.kept_times import KeptTimes
from spac.model.kernels import ggml_name

LEAST_GAIN = 1.03
"""An answer must be this many times as fast with repacked weights."""
MEMORY_SHARE = 7 / 8
"""Repacked weights may take this share of the available memory. Contexts and other programs need the rest."""
PROMPT, ANSWER = 256, 128
"""Tokens of the answer whose time is compared, and of the prompt before it."""
SECONDS = 0.1
"""Seconds of measurement for each type."""
Times = Mapping[str, Any]
"""The times of one type: "plain", and "repacked" if llama.cpp can repack it (`_core.time_repacking`).

"ways" has the ways that plain weights were measured with (`spac.model.kernels`).
"""


def repacking_pays(info: ModelInfo, threads: int) -> bool:
    """Return True if llama.cpp should repack the weights of this model, with experts on the CPU alone.

    Repacking costs memory and loading time, and repacked weights do not lie on the pages of 2 MB of
    `--huge-pages`. So its gain must be above LEAST_GAIN. A model that memory does not hold stays mapped.
    SPAC_CPU_KERNELS=0 leaves the choice to llama.cpp, which repacks all types that it can.
    """
    if not _core.cpu_kernels_enabled():
        return True
    room = host_memory.available()  # 0 if the system does not report it
    return not 0 < room * MEMORY_SHARE < info.file_size and gain(info, threads) > LEAST_GAIN


def gain(info: ModelInfo, threads: int) -> float:
    """Return the factor by which repacked weights make the model faster; 1.0 if none can be repacked.

    Types that llama.cpp can repack are measured if they have no kept measurement. That takes less than half a
    second each.
    """
    read = {ggml_name(kind): n_bytes for kind, n_bytes in read_bytes(info).items()}
    kinds = _core.repackable_cpu_types(list(read))
    return gain_of(read, measured(kinds, threads)) if kinds else 1.0


def read_bytes(info: ModelInfo) -> dict[str, tuple[float, float]]:
    """Return the bytes of experts and of dense matrices that one token is multiplied with, by type's name."""
    used = info.n_expert_used / info.n_expert if info.n_expert else 0.0
    experts = {kind: info.expert_types.get(kind, 0) for kind in info.types}
    return {
        kind: (experts[kind] * used, n_bytes - experts[kind] - info.table_types.get(kind, 0))
        for kind, n_bytes in info.types.items()
    }


def gain_of(read: Mapping[str, tuple[float, float]], times: Mapping[str, Times]) -> float:
    """Return the time of an answer with plain weights divided by that with repacked ones.

    `read` is the result of `read_bytes`, by ggml's names. Types without times are not repacked. A byte of
    them is assumed to cost as much as a plain byte of the others.
    """
    plain = sum(_answer(read[kind], of["plain"]) for kind, of in times.items())
    repacked = sum(_answer(read[kind], of.get("repacked", of["plain"])) for kind, of in times.items())
    n_bytes = {kind: sum(of) for kind, of in read.items()}
    measured_bytes = sum(n_bytes[kind] for kind in times)
    others = plain * (sum(n_bytes.values()) / measured_bytes - 1) if measured_bytes else 0.0
    return (plain + others) / (repacked + others) if repacked + others > 0 else 1.0


def _answer(read: tuple[float, float], seconds: list[float]) -> float:
    """Return the seconds that a prompt and its answer take with the weights of one type."""
    (experts, dense), (expert_token, expert_prompt, dense_token, dense_prompt) = read, seconds
    token, prompt = (
        experts * expert_token + dense * dense_token,
        experts * expert_prompt + dense * dense_prompt,
    )
    return (ANSWER * token + PROMPT * prompt) / 1e9


def measured(types: Iterable[str], threads: int) -> dict[str, Times]:
    """Return the times of these types, from the cache or else from a measurement."""
    ways = {kind: _ways(kind) for kind in types}

    def measure(missing: list[str]) -> tuple[dict[str, Times], float]:
        found, running = _core.time_repacking(missing, threads, SECONDS)
        return {kind: {"ways": ways[kind], **of} for kind, of in found.items()}, running

    return KEPT.measured(ways, threads, measure, lambda kind, times: bool(times["ways"] == ways[kind]))


def _ways(kind: str) -> list[str]:
    """Return the ways to compute with plain weights; none if spac has no kernels for the type."""
    if kind not in _core.trusted_cpu_kernels():
        return []
    return [*_core.chosen_cpu_kernels(kind), *map(str, _core.chosen_dense_cpu_kernels(kind))]


def _checked(of: Any) -> Times | None:
    if not isinstance(of, dict) or not isinstance(of.get("ways"), list) or "plain" not in of:
        return None
    rows = [row for form, row in of.items() if form != "ways"]
    usable = set(of) <= {"ways", "plain", "repacked"} and all(
        isinstance(row, list)
        and len(row) == 4
        and all(isinstance(x, float) and isfinite(x) and x > 0 for x in row)
        for row in rows
    )
    return of if usable else None


KEPT = KeptTimes("-repacking", _checked)
