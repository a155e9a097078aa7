"""What things cost on this machine with this model: unit times that engine, balancer and governor share.

`spac.profile` measures them; `spac.costs.estimator` keeps them true while an engine runs. All in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from math import isfinite
from typing import Any, Protocol, Self

from spac.errors import InputError

SCHEMA = 1
"""Of the JSON form; raised when a field changes its meaning."""


class Layer(Protocol):
    """What the guess needs of an MoE layer (`spac._core.LayerInfo`, `spac.scheduler.Layer`)."""

    @property
    def n_used(self) -> int: ...
    @property
    def expert_bytes(self) -> int: ...
    @property
    def pool(self) -> int: ...


@dataclass(frozen=True)
class ExpertCosts:
    """Of the experts of one pool (layers with equal shapes and types), in seconds.

    In a layer that leaves `pairs` activations (token, expert) of `distinct` experts to the CPU,

        T_cpu = cpu_layer_s + cpu_expert_s · distinct + cpu_pair_s · pairs,

    or, as MoE-SpAc's Eq. 7 has it, T_cpu = cpu_pair_only_s · pairs. On the device (Eq. 8), T_gpu =
    device_expert_s · distinct.
    """

    cpu_layer_s: float
    cpu_expert_s: float
    cpu_pair_s: float
    cpu_pair_only_s: float
    device_expert_s: float
    upload_s: float  # one expert to the device, with nothing else going on
    upload_busy_s: float  # the same while device and CPU compute

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_time(item.name, getattr(self, item.name))

    @classmethod
    def guessed(cls, expert_bytes: int) -> Self:
        """Before anything is measured: a desktop with 30 GB/s of memory, 600 of device memory, 12 of link.

        All are bound by reading an expert's weights: on the CPU once for all its tokens, and each of them
        takes a tenth of that again.
        """
        read = expert_bytes / 30e9
        return cls(
            cpu_layer_s=0.0,
            cpu_expert_s=read,
            cpu_pair_s=read / 10,
            cpu_pair_only_s=read,
            device_expert_s=expert_bytes / 600e9,
            upload_s=expert_bytes / 12e9,
            upload_busy_s=expert_bytes / 12e9,
        )

    def cpu_s(self, pairs: float, distinct: float) -> float:
        """T_cpu of one layer; 0 when it leaves nothing to the CPU."""
        if pairs <= 0:
            return 0.0
        return self.cpu_layer_s + self.cpu_expert_s * distinct + self.cpu_pair_s * pairs


@dataclass(frozen=True)
class Costs:
    """Unit times of one model pair on one machine. Raises InputError for what cannot be a time."""

    experts: tuple[ExpertCosts, ...]
    """By pool: `experts[layer.pool]`."""
    draft_base_s: float
    """Of every draft, however short; with `draft_token_s` MoE-SpeQ's T_d,base and T_d,token."""
    draft_token_s: float
    """T_draft^u: one token of the draft."""
    verify_s: tuple[float, ...]
    """Verification and sampling of 1, 2, … tokens, experts included, with the slots that were there: entry
    n-1 for n tokens. A table, for it jumps where kernels switch (as from 8 to 9 tokens)."""
    dense_s: tuple[float, ...]
    """Of these, what is not expert work: attention, routers, output, the hand-off. Of the same length."""
    hand_off_s: float | None = None
    """Of a layer that is not wholly resident, beside all experts: the CPU's wait for ids and input, and the
    device's for the CPU's rows. None before it has been measured."""

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
        """T_draft: a draft of `n_tokens`; 0 for none."""
        return self.draft_base_s + n_tokens * self.draft_token_s if n_tokens > 0 else 0.0

    def verify(self, n_tokens: int) -> float:
        """T_verify of a batch of `n_tokens` (a draft and one); beyond the table in proportion to its last."""
        return _look_up(self.verify_s, n_tokens)

    def dense(self, n_tokens: int) -> float:
        """Of `verify(n_tokens)`, what is not expert work."""
        return _look_up(self.dense_s, n_tokens)

    @classmethod
    def guessed(cls, layers: Sequence[Layer], n_tokens: int = 9) -> Self:
        """Before anything is measured: every token wants experts of its own, and the rest of the model takes
        as long as the experts of one token. The table has entries up to `n_tokens`."""
        sizes = {layer.pool: layer.expert_bytes for layer in layers}
        experts = tuple(ExpertCosts.guessed(sizes[pool]) for pool in range(len(sizes)))
        one = sum(experts[layer.pool].cpu_s(layer.n_used or 1, layer.n_used or 1) for layer in layers)
        dense = (one,) * n_tokens
        verify = tuple(one + n * one for n in range(1, n_tokens + 1))
        return cls(experts, 0.0, one / 10, verify, dense)

    def up_to(self, n_tokens: int) -> Self:
        """The same, with tables of at least `n_tokens` entries."""
        sizes = range(1, max(n_tokens, len(self.verify_s)) + 1)
        return replace(self, verify_s=tuple(map(self.verify, sizes)), dense_s=tuple(map(self.dense, sizes)))

    def to_json(self) -> str:
        """One line that `from_json` reads."""
        return json.dumps({"schema": SCHEMA, **asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Raises InputError for anything but what `to_json` of this schema writes."""
        try:
            values: dict[str, Any] = json.loads(text)
            if values.pop("schema") != SCHEMA:
                raise ValueError("another schema")
            values["experts"] = tuple(ExpertCosts(**each) for each in values["experts"])
            values["verify_s"], values["dense_s"] = tuple(values["verify_s"]), tuple(values["dense_s"])
            return cls(**values)
        except InputError:
            raise
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(f"these are no costs: {type(error).__name__}: {error}") from None


class LiveCosts(Protocol):
    """Costs that somebody keeps true (`spac.costs.estimator.CostEstimator`)."""

    @property
    def costs(self) -> Costs:
        """As they are now."""


def _look_up(table: tuple[float, ...], n_tokens: int) -> float:
    if n_tokens <= len(table):
        return table[max(1, n_tokens) - 1]
    return table[-1] * n_tokens / len(table)


def _check_time(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not (isfinite(value) and value >= 0):
        raise InputError(f"cost {name} must be a time of at least 0 s, not {value!r}")
