"""The slot table agrees with its contract and with a slow, obvious reference, on random tables and plans."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac import _core
from spac.errors import InternalError

Expert = tuple[int, int]


@dataclass
class World:
    layers: list[tuple[int, int]]
    pool_slots: list[int]
    table: _core.SlotTable = field(init=False)
    slot_of: dict[Expert, int] = field(default_factory=dict)
    leaving: set[tuple[int, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.table = _core.SlotTable(self.layers, self.pool_slots)

    def pool(self, expert: Expert) -> int:
        return self.layers[expert[0]][1]

    def free(self, pool: int) -> int:
        held = sum(self.pool(e) == pool for e in self.slot_of)
        return self.pool_slots[pool] - held - sum(p == pool for p, _ in self.leaving)

    def experts(self) -> list[Expert]:
        return [(il, e) for il, (n, _) in enumerate(self.layers) for e in range(n)]

    def acquire(self, expert: Expert) -> None:
        slot = self.table.acquire(*expert)
        taken = {s for e, s in self.slot_of.items() if self.pool(e) == self.pool(expert)}
        assert slot not in taken
        assert (self.pool(expert), slot) not in self.leaving
        self.slot_of[expert] = slot

    def evict(self, expert: Expert) -> None:
        assert self.table.evict(*expert) == self.slot_of[expert]
        self.leaving.add((self.pool(expert), self.slot_of.pop(expert)))

    def check(self) -> None:
        self.table.check_integrity()
        assert self.table.n_held == len(self.slot_of)
        for expert in self.experts():
            assert self.table.slot_of(*expert) == self.slot_of.get(expert, -1)
        for pool in range(len(self.pool_slots)):
            assert self.table.n_free(pool) == self.free(pool)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    n_pool = draw(st.integers(1, 3))
    layers = draw(st.lists(st.tuples(st.integers(1, 5), st.integers(0, n_pool - 1)), min_size=1, max_size=5))
    return World(layers, draw(st.lists(st.integers(0, 6), min_size=n_pool, max_size=n_pool)))


def plan_for(draw: st.DrawFn, world: World, levels: int) -> tuple[np.ndarray, np.ndarray]:
    shape = (len(world.layers), max(n for n, _ in world.layers))
    priority = draw(
        st.lists(st.integers(0, levels), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1])
    )
    threshold = draw(st.lists(st.integers(0, levels + 1), min_size=shape[0], max_size=shape[0]))
    return np.array(priority, np.int32).reshape(shape), np.array(threshold, np.int32)


def expected_steps(world: World, priority: np.ndarray, threshold: np.ndarray, cursor: int) -> list[object]:
    """Return the steps that the contract of SlotTable::toward demands, word for word."""
    n_layer = len(world.layers)
    free = [world.free(p) for p in range(len(world.pool_slots))]
    leaving = [sum(q == p for q, _ in world.leaving) for p in range(len(world.pool_slots))]
    victims = sorted(world.slot_of, key=lambda e: (priority[e], -((e[0] - cursor + 1) % n_layer), e))
    wanted = [e for e in world.experts() if e not in world.slot_of and priority[e] >= threshold[e[0]]]
    steps: list[object] = []
    for load in sorted(wanted, key=lambda e: (-priority[e], (e[0] - cursor) % n_layer, e)):
        pool = world.pool(load)
        candidates = [v for v in victims if world.pool(v) == pool]
        if free[pool]:
            free[pool] -= 1
            steps.append(("use_free", load, None))
        elif leaving[pool]:
            leaving[pool] -= 1
            steps.append(("wait", load, None))
        elif candidates and priority[candidates[0]] < priority[load]:
            victims.remove(candidates[0])
            steps.append(("use_evicted", load, candidates[0]))
    return steps


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_history_keeps_the_table_whole(data):
    world = data.draw(worlds())
    world.check()
    for _ in range(data.draw(st.integers(0, 25))):
        can_load = [e for e in world.experts() if e not in world.slot_of and world.free(world.pool(e)) > 0]
        choices = (
            ["acquire"] * bool(can_load) + ["evict"] * bool(world.slot_of) + ["release"] * bool(world.leaving)
        )
        if not choices:
            break
        match data.draw(st.sampled_from(choices)):
            case "acquire":
                world.acquire(data.draw(st.sampled_from(can_load)))
            case "evict":
                world.evict(data.draw(st.sampled_from(sorted(world.slot_of))))
            case "release":
                pool, slot = data.draw(st.sampled_from(sorted(world.leaving)))
                world.table.release(pool, slot)
                world.leaving.remove((pool, slot))
        world.check()


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_steps_follow_the_contract_and_reach_the_plan(data):
    world = data.draw(worlds())
    for expert in data.draw(st.permutations(world.experts())):
        if world.free(world.pool(expert)) > 0 and data.draw(st.booleans()):
            world.acquire(expert)
    for expert in sorted(world.slot_of):
        if data.draw(st.integers(0, 3)) == 0:
            world.evict(expert)
    cursor = data.draw(st.integers(0, len(world.layers) - 1))
    priority, threshold = plan_for(data.draw, world, levels=data.draw(st.integers(0, 3)))
    for _ in range(100):
        steps = world.table.toward(priority, threshold, cursor)
        assert steps == expected_steps(world, priority, threshold, cursor)
        if not steps:
            break
        kind, load, victim = steps[0]
        if kind == "use_free":
            world.acquire(load)
        elif kind == "use_evicted":
            assert victim is not None
            world.evict(victim)
        else:
            pool, slot = min(s for s in world.leaving if s[0] == world.pool(load))
            world.table.release(pool, slot)
            world.leaving.remove((pool, slot))
        world.check()
    else:
        pytest.fail("the plan was never reached")
    # At the end, no wanted expert is absent while a less wanted one holds a slot of its pool.
    for expert in world.experts():
        if expert not in world.slot_of and priority[expert] >= threshold[expert[0]]:
            holders = [e for e in world.slot_of if world.pool(e) == world.pool(expert)]
            assert len(holders) == world.pool_slots[world.pool(expert)]
            assert all(priority[h] >= priority[expert] for h in holders)


def test_misuse_is_refused():
    table = _core.SlotTable([(2, 0)], [1])
    table.acquire(0, 0)
    for wrong in (lambda: table.acquire(0, 0), lambda: table.acquire(0, 1), lambda: table.release(0, 0)):
        with pytest.raises(InternalError):
            wrong()
    table.check_integrity()


@given(
    st.integers(0, 200), st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=8)
)
def test_slots_are_shared_out_by_experts(n_slots, layers):
    shares = _core.share_out(n_slots, layers, 4)
    experts = [sum(n for n, p in layers if p == pool) for pool in range(4)]
    assert sum(shares) == min(n_slots, sum(experts))
    for share, n in zip(shares, experts, strict=True):
        exact = min(n_slots, sum(experts)) * n / sum(experts)
        assert share <= n
        assert abs(share - exact) < 1


@given(
    st.integers(0, 200), st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), min_size=1, max_size=4)
)
def test_devices_share_slots_by_their_experts_as_far_as_they_have_room(n_slots, devices):
    experts, room = [n for n, _ in devices], [min(pair) for pair in devices]
    shares = _core.share_by_room(n_slots, experts, room)
    assert sum(shares) == min(n_slots, sum(room))
    assert all(share <= most for share, most in zip(shares, room, strict=True))
    plenty = _core.share_by_room(n_slots, experts, experts)
    exact = [min(n_slots, sum(experts)) * n / max(1, sum(experts)) for n in experts]
    assert all(abs(share - part) < 1 for share, part in zip(plenty, exact, strict=True))
    # Who is not full has the part that it would have if all had room, or more.
    for share, most, other in zip(shares, room, plenty, strict=True):
        assert share >= min(most, other - 1)


def test_slots_of_one_tensor_are_addressable_in_32_bits():
    """This holds for BF16 experts of 7168 x 2048, for Q4_K ones (blocks of 256), and for a size of zero."""
    for blocks in (7168 * 2048, 7168 * 2048 // 256, 1, 2**31 - 1):
        n = _core.slots_per_tensor(blocks)
        assert n * blocks < 2**31 <= (n + 1) * blocks
    assert _core.slots_per_tensor(7168 * 2048) == 146
    assert _core.slots_per_tensor(2**31) == 0
    assert _core.slots_per_tensor(0) == 2**31 - 1


@given(
    st.lists(st.integers(0, 120), min_size=4, max_size=4),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), min_size=1, max_size=8),
)
def test_the_most_slots_are_within_every_limit_and_one_more_is_not(limits, layers):
    def fits(n_slots: int) -> bool:
        shares = _core.share_out(n_slots, layers, 4)
        return all(share <= limit for share, limit in zip(shares, limits, strict=True))

    n_experts = sum(n for n, _ in layers)
    most = _core.most_slots(limits, layers)
    assert 0 <= most <= n_experts
    assert fits(most)
    assert not any(fits(n) for n in range(most + 1, n_experts + 1))
