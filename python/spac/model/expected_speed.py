"""The tokens per second that a model is expected to make here without a draft, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from spac import _core
from spac.costs import Costs, store
from spac.errors import InputError
from spac.machine.cpu import default_threads, physical_cores
from spac.model import kernels
from spac.model.gguf.info import ModelInfo

LEAST_MEASURED = 0.9
"""The share of a token's weights, in bytes, whose types must have been measured for a computed speed."""
RUNS, COSTS, WEIGHTS = "runs", "costs", "weights"
SOURCES = {
    RUNS: "the median step of the model's last run",
    COSTS: "computed from costs that the model's runs measured",
    WEIGHTS: "the model has not run here; computed from the measured time of products with such weights, "
    "without attention, so a run is slower",
}
"""The sources of a speed, and the meaning of each for readers."""


@dataclass(frozen=True)
class Speed:
    """An expected speed, and what it comes from."""

    tokens_per_second: float
    source: str
    """A key of SOURCES."""


def expected_speed(info: ModelInfo, device: str) -> Speed | None:
    """Return the expected speed on a device, or on the CPU alone ("cpu"); None if nothing was measured.

    What the model's runs measured comes first. Without any, the CPU's speed is computed from the times of
    products with the model's types of weights, which runs of other models have left.
    """
    costs = kept_costs(info.path, device)
    if costs is not None and costs.verify(1) > 0:
        return Speed(1 / costs.verify(1), COSTS if costs.experts else RUNS)
    if device != "cpu":
        return None
    threads = default_threads(physical_cores())
    seconds = weights_seconds(info, threads, kernels.kept_times(_core.trusted_cpu_kernels(), threads))
    return None if seconds is None else Speed(1 / seconds, WEIGHTS)


def kept_costs(target: Path, device: str) -> Costs | None:
    """Return the newest costs that runs of a target on a device left, with any settings; None without any."""
    entry = store.newest("costs", target, device)
    with suppress(InputError):
        return Costs.from_dict(entry.value.get("costs")) if entry is not None else None
    return None


def read_bytes(info: ModelInfo) -> dict[str, float]:
    """Return the bytes of weights that one token is multiplied with, by GGUF's name of the type."""
    used = info.n_expert_used / info.n_expert if info.n_expert else 0.0
    return {
        kind: n_bytes - (1 - used) * info.expert_types.get(kind, 0) - info.table_types.get(kind, 0)
        for kind, n_bytes in info.types.items()
    }


def weights_seconds(info: ModelInfo, threads: int, times: Mapping[str, kernels.Times]) -> float | None:
    """Return the seconds of a token's products with the weights, without attention and all else.

    `times` are those of this number of threads, by ggml's type names. Return None if they lack types with
    more than a small part of the bytes. A byte of those is assumed to cost as much as one of the others.
    """
    read = {kernels.ggml_name(kind): n_bytes for kind, n_bytes in read_bytes(info).items()}
    known = [kind for kind in _core.trusted_cpu_kernels() if kind in read and kind in times]
    total, measured = sum(read.values()), sum(read[kind] for kind in known)
    if total <= 0 or measured < LEAST_MEASURED * total:
        return None
    seconds = sum(read[kind] * _byte_seconds(kind, times[kind]) for kind in known)
    return seconds / threads * total / measured


def _byte_seconds(kind: str, times: kernels.Times) -> float:
    """Return the seconds in which a thread multiplies a byte of weights with one row of input."""
    fastest, *_ = kernels.fastest(times)
    return times[fastest][0] / _core.cpu_kernels_trial_bytes(kind)
