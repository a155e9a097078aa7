"""The unit times of a model on this machine, in seconds, which engine, balancer and governor share.

`spac.costs.estimator` learns them while an engine runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, Protocol, Self

from spac.errors import InputError


class LayerSizes(Protocol):
    """The fields of an MoE layer that the guess uses (`spac._core.LayerInfo`, `spac.scheduler.Layer`)."""

    @property
    def n_used(self) -> int:
        """Experts per token; 0 before the first graph."""

    @property
    def expert_bytes(self) -> int:
        """The bytes of one expert."""

    @property
    def pool(self) -> int:
        """The pool of slots that the layer shares."""


@dataclass(frozen=True)
class ExpertCosts:
    """The costs of the experts of one pool (layers with equal shapes and types), in seconds.

    In a layer that leaves `pairs` activations (token, expert) of `distinct` experts to the CPU,

        T_cpu = cpu_layer_s + cpu_expert_s · distinct + cpu_pair_s · pairs,

    or, by MoE-SpAc's Eq. 7, T_cpu = cpu_pair_only_s · pairs. On the device (Eq. 8), T_gpu = device_expert_s ·
    distinct. CUDA's kernel for up to 8 tokens reads an expert once for each token that uses it, so this holds
    as far as the device's caches keep it in between.
    """

    cpu_layer_s: float
    cpu_expert_s: float
    cpu_pair_s: float
    cpu_pair_only_s: float
    device_expert_s: float
    upload_s: float  # time to copy one expert to the device

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_time(item.name, getattr(self, item.name))

    @classmethod
    def guessed(cls, expert_bytes: int) -> Self:
        """Return the costs to start from before anything is measured.

        They are those of a desktop with 30 GB/s of memory, 600 GB/s of device memory and a link of 12 GB/s.
        All are bound by reading an expert's weights. The CPU reads them once for all of the expert's tokens,
        and each token adds a tenth of that time.
        """
        read = expert_bytes / 30e9
        return cls(
            cpu_layer_s=0.0,
            cpu_expert_s=read,
            cpu_pair_s=read / 10,
            cpu_pair_only_s=read,
            device_expert_s=expert_bytes / 600e9,
            upload_s=expert_bytes / 12e9,
        )

    def cpu_s(self, pairs: float, distinct: float) -> float:
        """Return T_cpu of one layer in seconds; 0 if the layer leaves nothing to the CPU."""
        if pairs <= 0:
            return 0.0
        return self.cpu_layer_s + self.cpu_expert_s * distinct + self.cpu_pair_s * pairs


@dataclass(frozen=True)
class Costs:
    """The unit times of one model pair on one machine.

    The constructor raises InputError for a value that cannot be a time.
    """

    experts: tuple[ExpertCosts, ...]
    """The experts' costs for each pool: `experts[layer.pool]`."""
    draft_base_s: float
    """The fixed time of a draft; with `draft_token_s`, MoE-SpeQ's T_d,base and T_d,token."""
    draft_token_s: float
    """The time of one draft token, T_draft^u."""
    verify_s: tuple[float, ...]
    """The times of verification and sampling, with the experts, for the slots at the measurement.

    Entry n-1 is for n tokens. It is a table because the times jump where kernels switch (as from 8 to 9
    tokens).
    """
    dense_s: tuple[float, ...]
    """The part of each entry of `verify_s` without the experts: attention, routers, output, hand-off."""
    hand_off_s: float | None = None
    """The time of the hand-off in a layer that is not whole, without all experts' time; None if not measured.

    It has the CPU's wait for ids and input, and the device's wait for the CPU's rows.
    """

    def __post_init__(self) -> None:
        if not self.verify_s or len(self.verify_s) != len(self.dense_s):
            raise InputError(
                f"verify_s and dense_s need one time per batch size, not {len(self.verify_s)} and "
                f"{len(self.dense_s)}"
            )
        for name in ("draft_base_s", "draft_token_s"):
            _check_time(name, getattr(self, name))
        if self.hand_off_s is not None:
            _check_time("hand_off_s", self.hand_off_s)
        for name in ("verify_s", "dense_s"):
            for time in getattr(self, name):
                _check_time(name, time)

    def draft(self, n_tokens: int) -> float:
        """Return T_draft, the seconds of a draft of `n_tokens`; 0 for none."""
        return self.draft_base_s + n_tokens * self.draft_token_s if n_tokens > 0 else 0.0

    def verify(self, n_tokens: int) -> float:
        """Return T_verify, the seconds of a batch of `n_tokens` (a draft and one more token).

        Beyond the table, the time is proportional to the last entry.
        """
        return _look_up(self.verify_s, n_tokens)

    def dense(self, n_tokens: int) -> float:
        """Return the seconds of `verify(n_tokens)` without the experts' work."""
        return _look_up(self.dense_s, n_tokens)

    @classmethod
    def guessed(cls, layers: Sequence[LayerSizes], n_tokens: int = 9) -> Self:
        """Return the costs to start from before anything is measured.

        The guess is that every token uses experts of its own, and that the rest of the model takes as long as
        the experts of one token. The tables have entries up to `n_tokens`.
        """
        sizes = {layer.pool: layer.expert_bytes for layer in layers}
        experts = tuple(ExpertCosts.guessed(sizes[pool]) for pool in range(len(sizes)))
        one = sum(experts[layer.pool].cpu_s(layer.n_used or 1, layer.n_used or 1) for layer in layers)
        dense = (one,) * n_tokens
        verify = tuple(one + n * one for n in range(1, n_tokens + 1))
        return cls(experts, 0.0, one / 10, verify, dense)

    def up_to(self, n_tokens: int) -> Self:
        """Return these costs with tables of at least `n_tokens` entries."""
        sizes = range(1, max(n_tokens, len(self.verify_s)) + 1)
        return replace(self, verify_s=tuple(map(self.verify, sizes)), dense_s=tuple(map(self.dense, sizes)))

    def to_dict(self) -> dict[str, Any]:
        """Return a form for JSON that `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Any) -> Self:
        """Return the costs in a result of `to_dict`, or raise InputError if it is not one."""
        try:
            values: dict[str, Any] = dict(stored)
            values["experts"] = tuple(ExpertCosts(**each) for each in values["experts"])
            values["verify_s"], values["dense_s"] = tuple(values["verify_s"]), tuple(values["dense_s"])
            return cls(**values)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise InputError(f"these are no costs: {type(error).__name__}: {error}") from None


class LiveCosts(Protocol):
    """An object that corrects costs while an engine runs (`spac.costs.estimator.CostEstimator`)."""

    @property
    def costs(self) -> Costs:
        """The current costs."""


def _look_up(table: tuple[float, ...], n_tokens: int) -> float:
    if n_tokens <= len(table):
        return table[max(1, n_tokens) - 1]
    return table[-1] * n_tokens / len(table)


def _check_time(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise InputError(f"cost {name} must be a time of at least 0 s, not {value!r}")
