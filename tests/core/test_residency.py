"""A bounded search tries every interleaving of plans, copies, publishing and launches that it reaches.

The search runs the real object. Beside it, the test keeps the contents of a device's slots. A copy writes
garbage when it starts and the expert when it ends. Launches may read at any time while they hold their mask.
After every operation, every slot that a held or published mask names must contain the mask's expert.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import _core
from spac.errors import InputError

GARBAGE = -2
Operation = tuple[str, int]


@dataclass(frozen=True)
class Scene:
    """Layers, slots and plans of a search. A plan is (priority rows, thresholds)."""

    layers: tuple[tuple[int, int], ...]
    pool_slots: tuple[int, ...]
    plans: tuple[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], ...]
    n_streams: int = 2
    max_loads: int = 2
    max_evictions: int = 2
    max_batches: int = 2  # batches under way at once
    # Each word is ("foresee" or "note_used", layer, experts).
    words: tuple[tuple[str, int, tuple[int, ...]], ...] = ()
    # Each execution's misses are (layer, experts, whether the plan goes by recency).
    misses: tuple[tuple[int, tuple[int, ...], bool], ...] = ()
    # Several devices: each has the pool of its number, and a residency of its own. They share the plan.
    n_devices: int = 1


@dataclass
class World:
    scene: Scene
    residencies: list[_core.Residency] = field(init=False)
    """By device."""
    contents: dict[tuple[int, int], tuple[int, int] | int] = field(default_factory=dict)
    loading: list[list[list[tuple[int, int, int, int]]]] = field(init=False)
    """Batches under way of each device, in order."""
    launches: list[list[_core.Mask]] = field(init=False)
    plan: int = -1
    said: dict[int, int] = field(default_factory=dict)  # the last word on each layer
    missed: tuple[int, _core.Mask] | None = None  # layer and mask of the last execution that loaded misses
    published: bool = True  # True once its loads are published

    def __post_init__(self) -> None:
        slots, n = self.scene.pool_slots, self.scene.n_devices
        own = [
            [many if pool == device or n == 1 else 0 for pool, many in enumerate(slots)]
            for device in range(n)
        ]
        self.residencies = [_core.Residency(list(self.scene.layers), each) for each in own]
        self.loading = [[] for _ in own]
        self.launches = [[] for _ in range(self.scene.n_streams)]

    def of(self, layer: int) -> _core.Residency:
        return self.residencies[self.scene.layers[layer][1] if self.scene.n_devices > 1 else 0]

    def mask(self, layer: int) -> _core.Mask:
        return self.of(layer).mask(layer)

    def choices(self) -> list[Operation]:
        result: list[Operation] = [("plan", k) for k in range(len(self.scene.plans)) if k != self.plan]
        for device, batches in enumerate(self.loading):
            result += [(f"finish {device}", 1), (f"finish {device}", 0)] if batches else []
            result += [("begin", device)] if len(batches) < self.scene.max_batches else []
        result += [("word", k) for k, word in enumerate(self.scene.words) if self.said.get(word[1]) != k]
        if self.missed is None:
            result += [("miss", k) for k in range(len(self.scene.misses))]
        else:
            result.append(("forget" if self.published else "publish", 0))
        for stream, held in enumerate(self.launches):
            result.append(("end", stream) if held else ("launch", stream))
        return result

    def do(self, operation: Operation) -> None:
        match operation:
            case ("plan", k):
                priority, threshold = self.scene.plans[k]
                for residency in self.residencies:
                    residency.submit(np.array(priority, np.int32), np.array(threshold, np.int32))
                self.plan = k
            case ("begin", device):
                batch = self.residencies[device].begin(0, self.scene.max_loads, self.scene.max_evictions)
                for _, _, pool, slot in batch:
                    self.contents[pool, slot] = GARBAGE
                self.loading[device] += [batch] if batch else []
            case (("finish 0" | "finish 1") as name, copied):
                device = int(name[-1])
                for layer, expert, pool, slot in self.loading[device].pop(0):
                    self.contents[pool, slot] = (layer, expert) if copied else GARBAGE
                self.residencies[device].finish(bool(copied))
            case ("word", k):
                kind, layer, experts = self.scene.words[k]
                getattr(self.of(layer), kind)(layer, list(experts))
                self.said[layer] = k
            case ("miss", k):
                self._miss(*self.scene.misses[k])
            case ("publish", _):
                assert self.missed is not None
                self.of(self.missed[0]).finish_misses()
                self.published = True
            case ("forget", _):
                self.missed = None
            case ("launch", stream):
                self.launches[stream] = [self.mask(il) for il in range(len(self.scene.layers))]
            case ("end", stream):
                self.launches[stream] = []
        self.check()

    def _miss(self, layer: int, experts: tuple[int, ...], most_recent: bool) -> None:
        """Load what an execution misses. It reads behind the copies, so they count as made at once."""
        slot_of = self.mask(layer).slot_of
        missing = [expert for expert in experts if slot_of[expert] < 0]
        loads, mask = self.of(layer).begin_misses(layer, missing, experts, 0, most_recent)
        for il, expert, pool, slot in loads:
            assert expert in missing
            self.contents[pool, slot] = (il, expert)
        if not loads:
            self.of(layer).finish_misses()
            return
        assert all(mask.slot_of[expert] >= 0 for expert in experts if slot_of[expert] >= 0)
        self.missed, self.published = (layer, mask), False

    def check(self) -> None:
        for residency in self.residencies:
            residency.check_integrity()
        published = [self.mask(il) for il in range(len(self.scene.layers))]
        missed = [self.missed] if self.missed is not None else []
        for masks in (enumerate(published), *map(enumerate, self.launches), missed):
            for layer, mask in masks:
                for expert, slot in enumerate(mask.slot_of):
                    if slot >= 0:
                        assert self.contents[self.scene.layers[layer][1], slot] == (layer, expert)

    def state(self) -> object:
        """Return what decides the future, up to the order in which free slots are handed out."""
        n = range(len(self.scene.layers))
        return (
            self.plan,
            tuple(sorted(self.said.items())),
            tuple(residency.settled for residency in self.residencies),
            tuple(tuple(map(tuple, batches)) for batches in self.loading),
            (self.missed[0], tuple(self.missed[1].slot_of), self.published) if self.missed else None,
            tuple(tuple(self.mask(il).slot_of) for il in n),
            tuple(self.of(il).slot_of(il, e) for il in n for e in range(self.scene.layers[il][0])),
            tuple(tuple(tuple(mask.slot_of) for mask in held) for held in self.launches),
            tuple(sorted(self.contents.items(), key=lambda item: item[0])),
        )

    def reaches_its_plan(self) -> None:
        for stream in range(self.scene.n_streams):
            self.do(("end", stream))
        if not self.published:
            self.do(("publish", 0))
        self.do(("forget", 0))
        if self.plan < 0:
            return
        self.do(("plan", self.plan))  # experts whose copy failed may be tried again
        for layer in range(len(self.scene.layers)):
            self.of(layer).note_used(layer, [])
        for device, residency in enumerate(self.residencies):
            for _ in range(40):
                self.do((f"finish {device}", 1) if self.loading[device] else ("begin", device))
                if residency.settled:
                    break
            else:
                pytest.fail("the plan was not reached")
        priority, threshold = self.scene.plans[self.plan]
        for pool, n_slots in enumerate(self.scene.pool_slots):
            ids = [(il, e) for il, (n, p) in enumerate(self.scene.layers) if p == pool for e in range(n)]
            wanted = [i for i in ids if priority[i[0]][i[1]] >= threshold[i[0]]]
            held = [i for i in ids if self.mask(i[0]).slot_of[i[1]] >= 0]
            if len(wanted) <= n_slots:
                assert set(wanted) <= set(held)
            else:
                assert len(held) == n_slots
                missing = [i for i in wanted if i not in held]
                assert max(priority[a][b] for a, b in missing) <= min(priority[a][b] for a, b in held)


def explore(scene: Scene, depth: int) -> int:
    """Search breadth first, by replaying each new state's shortest history. Return the number of states."""

    def replay(history: tuple[Operation, ...]) -> World:
        world = World(scene)
        for operation in history:
            world.do(operation)
        return world

    seen = {World(scene).state()}
    queue: deque[tuple[Operation, ...]] = deque([()])
    while queue:
        history = queue.popleft()
        if len(history) == depth:
            replay(history).reaches_its_plan()
            continue
        for operation in replay(history).choices():
            world = replay((*history, operation))
            state = world.state()
            if state not in seen:
                seen.add(state)
                queue.append((*history, operation))
            else:
                world.reaches_its_plan()
    return len(seen)


ONE_LAYER = Scene(
    layers=((3, 0),),
    pool_slots=(2,),
    plans=((((2, 1, 0),), (1,)), (((0, 1, 2),), (1,)), (((1, 0, 1),), (0,))),
)
TWO_LAYERS = Scene(
    layers=((2, 0), (2, 0)),
    pool_slots=(2,),
    plans=((((2, 2), (0, 0)), (1, 1)), (((0, 0), (2, 2)), (1, 1))),
    n_streams=1,
    max_loads=1,
    max_evictions=1,
)


FORESEEN = Scene(
    layers=((2, 0), (2, 0)),
    pool_slots=(2,),
    plans=((((2, 2), (0, 0)), (1, 1)), (((1, 0), (2, 0)), (0, 0))),
    n_streams=1,
    words=(("foresee", 1, (0,)), ("foresee", 0, (0, 1)), ("note_used", 1, (1,))),
)


MISSED = Scene(
    layers=((2, 0), (2, 0)),
    pool_slots=(2,),
    plans=((((2, 2), (0, 0)), (1, 1)), (((1, 0), (2, 0)), (1, 1))),
    n_streams=1,
    max_loads=1,
    max_evictions=1,
    misses=((0, (1,), False), (1, (0, 1), False), (0, (0, 1), True)),
)


TWO_DEVICES = Scene(
    layers=((2, 0), (2, 1)),
    pool_slots=(1, 1),
    plans=((((2, 1), (1, 2)), (1, 1)), (((1, 2), (2, 0)), (1, 1))),
    n_streams=1,
    max_loads=1,
    max_evictions=1,
    max_batches=1,
    words=(("foresee", 1, (1,)),),
    misses=((0, (1,), False),),
    n_devices=2,
)


@pytest.mark.parametrize(
    ("scene", "depth", "least"),
    [
        (ONE_LAYER, 13, 2500), (TWO_LAYERS, 14, 200), (FORESEEN, 13, 2500), (MISSED, 9, 1500),
        (TWO_DEVICES, 8, 1200),
    ],
)  # fmt: skip
def test_every_interleaving_is_safe_and_reaches_its_plan(scene, depth, least):
    assert explore(scene, depth) >= least


def test_the_search_would_see_a_slot_reused_too_early():
    """This negative control changes contents behind the object's back, while a launch holds the mask."""
    world = World(ONE_LAYER)
    for operation in [("plan", 0), ("begin", 0), ("finish 0", 1), ("launch", 0)]:
        world.do(operation)
    slot = world.launches[0][0].slot_of[0]
    world.contents[0, slot] = GARBAGE
    with pytest.raises(AssertionError):
        world.check()


@given(
    priority=st.lists(st.integers(0, 5), min_size=12, max_size=12),
    foreseen=st.lists(st.integers(0, 5), max_size=3, unique=True),
    used=st.lists(st.integers(0, 5), max_size=3, unique=True),
    n_slots=st.integers(0, 12),
)
def test_what_is_foreseen_comes_first_and_what_was_used_stays(priority, foreseen, used, n_slots):
    """Layer 0 ran and used some experts. Layer 1 is foreseen to use others. The plan has filled the slots."""
    residency = _core.Residency([(6, 0), (6, 0)], [n_slots])
    residency.submit(np.array(priority, np.int32).reshape(2, 6), np.zeros(2, np.int32))
    drive(residency)
    before = [set(resident(residency, il)) for il in range(2)]
    residency.note_used(0, used)
    residency.foresee(1, foreseen)
    drive(residency)
    after = [set(resident(residency, il)) for il in range(2)]
    kept = len(before[0] & set(used))
    assert before[0] & set(used) <= after[0]
    assert len(after[1] & set(foreseen)) == min(len(foreseen), n_slots - kept)
    residency.note_used(0, [])
    residency.note_used(1, [])
    drive(residency)
    priorities = [sorted((priority[il * 6 + e] for il in range(2) for e in each[il]), reverse=True)
                  for each in (before, [resident(residency, il) for il in range(2)])]  # fmt: skip
    assert priorities[0] == priorities[1]  # now the plan is followed again


def drive(residency: _core.Residency) -> None:
    for _ in range(40):
        residency.begin(0, 3, 3)
        with suppress(InputError):  # raised if nothing was begun
            residency.finish(True)
    assert residency.settled


def resident(residency: _core.Residency, layer: int) -> list[int]:
    return [e for e, slot in enumerate(residency.mask(layer).slot_of) if slot >= 0]
