"""Every interleaving of plans, copies, publishing and launches that a bounded search reaches.

The search runs the real object. Beside it stands what a device would hold: the contents of the slots, written
when a copy starts (garbage) and when it ends, and read by launches at any time while they hold their mask.
After every operation, every slot that a held or published mask names must contain the mask's expert.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
import pytest

from spac import _core

GARBAGE = -2
Operation = tuple[str, int]


@dataclass(frozen=True)
class Scene:
    """Layers, slots and plans of a search; plans are (priority rows, thresholds)."""

    layers: tuple[tuple[int, int], ...]
    pool_slots: tuple[int, ...]
    plans: tuple[tuple[tuple[tuple[int, ...], ...], tuple[int, ...]], ...]
    n_streams: int = 2
    max_loads: int = 2
    max_evictions: int = 2


@dataclass
class World:
    scene: Scene
    residency: _core.Residency = field(init=False)
    contents: dict[tuple[int, int], tuple[int, int] | int] = field(default_factory=dict)
    loading: list[tuple[int, int, int, int]] = field(default_factory=list)
    launches: list[list[_core.Mask]] = field(init=False)
    plan: int = -1

    def __post_init__(self) -> None:
        self.residency = _core.Residency(list(self.scene.layers), list(self.scene.pool_slots))
        self.launches = [[] for _ in range(self.scene.n_streams)]

    def choices(self) -> list[Operation]:
        result: list[Operation] = [("plan", k) for k in range(len(self.scene.plans)) if k != self.plan]
        result += [("finish", 1), ("finish", 0)] if self.loading else [("begin", 0)]
        for stream, held in enumerate(self.launches):
            result.append(("end", stream) if held else ("launch", stream))
        return result

    def do(self, operation: Operation) -> None:
        match operation:
            case ("plan", k):
                priority, threshold = self.scene.plans[k]
                self.residency.submit(np.array(priority, np.int32), np.array(threshold, np.int32))
                self.plan = k
            case ("begin", _):
                self.loading = self.residency.begin(0, self.scene.max_loads, self.scene.max_evictions)
                for _, _, pool, slot in self.loading:
                    self.contents[pool, slot] = GARBAGE
            case ("finish", copied):
                if copied:
                    for layer, expert, pool, slot in self.loading:
                        self.contents[pool, slot] = (layer, expert)
                self.loading = []
                self.residency.finish(bool(copied))
            case ("launch", stream):
                self.launches[stream] = [self.residency.mask(il) for il in range(len(self.scene.layers))]
            case ("end", stream):
                self.launches[stream] = []
        self.check()

    def check(self) -> None:
        self.residency.check_integrity()
        published = [self.residency.mask(il) for il in range(len(self.scene.layers))]
        for masks in (published, *self.launches):
            for layer, mask in enumerate(masks):
                for expert, slot in enumerate(mask.slot_of):
                    if slot >= 0:
                        assert self.contents[self.scene.layers[layer][1], slot] == (layer, expert)

    def state(self) -> object:
        """What decides the future, up to the order in which free slots are handed out."""
        n = range(len(self.scene.layers))
        return (
            self.plan,
            self.residency.settled,
            tuple(self.loading),
            tuple(tuple(self.residency.mask(il).slot_of) for il in n),
            tuple(self.residency.slot_of(il, e) for il in n for e in range(self.scene.layers[il][0])),
            tuple(tuple(tuple(mask.slot_of) for mask in held) for held in self.launches),
            tuple(sorted(self.contents.items(), key=lambda item: item[0])),
        )

    def reaches_its_plan(self) -> None:
        """With launches over and copies that succeed, the plan is reached: nothing is lost, nothing hangs."""
        for stream in range(self.scene.n_streams):
            self.do(("end", stream))
        if self.plan < 0:
            return
        self.do(("plan", self.plan))  # experts whose copy failed may be tried again
        for _ in range(40):
            self.do(("finish", 1) if self.loading else ("begin", 0))
            if self.residency.settled:
                break
        else:
            pytest.fail("the plan was not reached")
        priority, threshold = self.scene.plans[self.plan]
        for pool, n_slots in enumerate(self.scene.pool_slots):
            ids = [(il, e) for il, (n, p) in enumerate(self.scene.layers) if p == pool for e in range(n)]
            wanted = [i for i in ids if priority[i[0]][i[1]] >= threshold[i[0]]]
            held = [i for i in ids if self.residency.mask(i[0]).slot_of[i[1]] >= 0]
            if len(wanted) <= n_slots:
                assert set(wanted) <= set(held)
            else:
                assert len(held) == n_slots
                missing = [i for i in wanted if i not in held]
                assert max(priority[a][b] for a, b in missing) <= min(priority[a][b] for a, b in held)


def explore(scene: Scene, depth: int) -> int:
    """Breadth first, by replaying each new state's shortest history; returns the number of states."""

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


@pytest.mark.parametrize(("scene", "depth", "least"), [(ONE_LAYER, 13, 2500), (TWO_LAYERS, 14, 200)])
def test_every_interleaving_is_safe_and_reaches_its_plan(scene: Scene, depth: int, least: int) -> None:
    assert explore(scene, depth) >= least


def test_the_search_would_see_a_slot_reused_too_early() -> None:
    """A negative control: contents written behind the object's back, while a launch holds the mask."""
    world = World(ONE_LAYER)
    for operation in [("plan", 0), ("begin", 0), ("finish", 1), ("launch", 0)]:
        world.do(operation)
    slot = world.launches[0][0].slot_of[0]
    world.contents[0, slot] = GARBAGE
    with pytest.raises(AssertionError):
        world.check()
