"""Models made of numbers. They give the views of a scheduler without a device."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from spac.scheduler import Layer, View


def make_view(
    n_experts: Sequence[int],
    pool_slots: Sequence[int],
    pools: Sequence[int] | None = None,
    demand: Sequence[Sequence[int]] | np.ndarray | None = None,
    *,
    n_verified: int = 0,
) -> View:
    """Return a view of layers with these numbers of experts. They are in pool 0, or where `pools` says."""
    pools = pools or [0] * len(n_experts)
    layers = tuple(
        Layer(f"blk.{i}.ffn_down_exps.weight", n, 2, 1024, pool)
        for i, (n, pool) in enumerate(zip(n_experts, pools, strict=True))
    )
    shape = (len(layers), max(n_experts))
    return View(
        layers=layers,
        pool_slots=np.array(pool_slots, np.int32),
        slot_of=np.full(shape, -1, np.int32),
        demand=np.zeros(shape, np.int32) if demand is None else np.asarray(demand, np.int32),
        n_verified=n_verified,
    )


@st.composite
def models(draw: st.DrawFn) -> tuple[list[int], list[int], list[int]]:
    """Draw odd shapes: experts per layer, pool of every layer, slots of every pool. One is 3 layers of 5."""
    n_experts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6) | st.just([5, 5, 5]))
    n_pool = draw(st.integers(1, 3))
    pools = draw(st.lists(st.integers(0, n_pool - 1), min_size=len(n_experts), max_size=len(n_experts)))
    slots = draw(st.lists(st.integers(0, sum(n_experts) + 2), min_size=n_pool, max_size=n_pool))
    return n_experts, pools, slots


@st.composite
def demands(draw: st.DrawFn, n_experts: Sequence[int]) -> np.ndarray:
    """Draw int32 [L, N]: a possible demand of one step, with zeros in the padding."""
    demand = np.zeros((len(n_experts), max(n_experts)), np.int32)
    for layer, n in enumerate(n_experts):
        demand[layer, :n] = draw(st.lists(st.integers(0, 3), min_size=n, max_size=n))
    return demand
