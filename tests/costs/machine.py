"""Machine made of numbers. It gives the times that its steps would take, with noise and stalls."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from spac.costs import Costs, ExpertCosts
from spac.scheduler import Layer

LAYER_COST = np.dtype(
    [("host_ns", "i8"), ("wait_ns", "i8"), ("host_activations", "i4"), ("host_distinct", "i4"),
     ("device_activations", "i4"), ("device_distinct", "i4"), ("loaded_distinct", "i4")]
)  # fmt: skip
EXPERT = ExpertCosts(
    cpu_layer_s=3e-6,
    cpu_expert_s=6e-6,
    cpu_pair_s=2e-6,
    cpu_pair_only_s=4e-6,
    device_expert_s=1e-6,
    upload_s=30e-6,
)


@dataclasses.dataclass(frozen=True)
class StepTimes:
    """The part of `_core.Step` from which costs are learned."""

    n_drafted: int
    n_verified: int
    layer_costs: np.ndarray
    draft_ns: float
    verify_ns: float
    sample_ns: float = 0.0
    upload_bytes: int = 0
    upload_ns: float = 0.0


LAYERS = [Layer(f"layer {i}", 32, 4, 100_000, 0) for i in range(5)]


def costs(**expert: float) -> Costs:
    """Return the real costs of the machine's steps."""
    return Costs(
        experts=(dataclasses.replace(EXPERT, **expert),),
        draft_base_s=2e-4,
        draft_token_s=3e-4,
        verify_s=tuple(1e-3 + n * 2e-4 for n in range(9)),
        dense_s=tuple(5e-4 + n * 5e-5 for n in range(9)),
    )


def wrong(true: Costs, factors: Iterator[float]) -> Costs:
    """Return `true` with every time multiplied by the next factor. A table has one factor."""
    experts = tuple(
        ExpertCosts(**{name: value * next(factors) for name, value in vars(each).items()})
        for each in true.experts
    )
    verify, dense = next(factors), next(factors)
    return Costs(
        experts=experts,
        draft_base_s=true.draft_base_s * next(factors),
        draft_token_s=true.draft_token_s * next(factors),
        verify_s=tuple(verify * time for time in true.verify_s),
        dense_s=tuple(dense * time for time in true.dense_s),
    )


def steps(
    true: Costs, share: float, seed: int, layers: list[Layer] = LAYERS, *, stalls: float = 0.02
) -> Iterator[StepTimes]:
    """Yield steps of 1 to 9 tokens with this share of the experts resident, after a cold start.

    Times have 10 % of noise. In one of 1 / `stalls` steps, one part takes a hundred times as long.
    """
    rng = np.random.default_rng(seed)
    for step in range(1_000_000):
        n, resident = int(rng.integers(1, 10)), share * min(1.0, step / 10)
        stalled = rng.integers(len(layers) + 1) if rng.random() < stalls else -1
        noise = np.exp(0.1 * rng.standard_normal(2 * len(layers) + 3))
        work, late, total = np.zeros(len(layers), LAYER_COST), 0.0, 0.0
        dense = true.dense(n) / (len(layers) + 1)
        for i, layer in enumerate(layers):
            expert, pairs = true.experts[layer.pool], n * layer.n_used
            distinct = round(layer.n_expert * (1 - (1 - layer.n_used / layer.n_expert) ** n))
            on_host = int(rng.binomial(distinct, 1 - resident))
            host_pairs = round(pairs * on_host / distinct)
            host = expert.cpu_s(host_pairs, on_host) * noise[i] * (100 if stalled == i else 1)
            wait = dense * noise[len(layers) + i] + late
            late = max(0.0, expert.device_expert_s * (distinct - on_host) - host)
            work[i] = (
                host * 1e9, wait * 1e9, host_pairs, on_host, pairs - host_pairs, distinct - on_host, 0,
            )  # fmt: skip
            total += host + wait
        yield StepTimes(
            n_drafted=n - 1,
            n_verified=n,
            layer_costs=work,
            draft_ns=1e9 * true.draft(n - 1) * noise[-1] * (100 if stalled == len(layers) else 1),
            verify_ns=1e9 * (total + dense + late),
            upload_bytes=20 * layers[0].expert_bytes,
            upload_ns=1e9 * 20 * true.experts[0].upload_s * noise[-2],
        )
