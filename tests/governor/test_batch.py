"""The draft length of a batch of sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spac.governor import BatchGovernor, FixedGovernor, Governor, RooflineGovernor
from spac.machine.arrays import Int32Array

COSTS = np.dtype([("host_ns", np.int64), ("host_distinct", np.int32)])


class Recorded(Governor):
    """Chooses a number and keeps what it observes."""

    name = "recorded"

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, list[tuple[int, int]]()

    def choose(self, room: int) -> int:
        return min(self.length, room)

    def observe(self, n_drafted: int, n_accepted: int, *_times: Any) -> None:
        self.seen.append((n_drafted, n_accepted))


def step_of(*sequences: tuple[int, int, int]) -> SimpleNamespace:
    """Return a step with sequences of (id, drafted, accepted); -1 accepted: the sequence waited."""
    return SimpleNamespace(
        batch=SimpleNamespace(draft_ns=1, layer_costs=()),
        sequences=[
            SimpleNamespace(id=id, tokens=[0] * (n_accepted + 1), n_drafted=n_drafted, n_accepted=n_accepted)
            for id, n_drafted, n_accepted in sequences
        ],
    )


@pytest.mark.parametrize(
    ("alone", "rooms", "lengths"),
    [
        (Recorded(5), {3: 100}, {3: 5}),
        (Recorded(5), {3: 2}, {3: 2}),
        (Recorded(5), {3: 100, 4: 1}, {3: 7, 4: 1}),
        (FixedGovernor(6), {3: 100, 4: 1, 5: 7}, {3: 6, 4: 1, 5: 6}),
        (FixedGovernor(9), {3: 100, 4: 100}, {3: 8, 4: 8}),
        (None, {3: 100, 4: 100}, {3: 0, 4: 0}),
        (Recorded(5), {}, {}),
    ],
)
def test_all_sequences_draft_one_length(
    alone: Governor | None, rooms: dict[int, int], lengths: dict[int, int]
) -> None:
    assert BatchGovernor(lambda: alone, lambda: Recorded(7), 8).choose(rooms) == lengths


def test_each_number_of_sequences_has_a_governor_that_learns_from_all_in_turns() -> None:
    alone, made = Recorded(5), list[Recorded]()

    def make() -> Recorded:
        made.append(Recorded(7))
        return made[-1]

    batch = BatchGovernor(lambda: alone, make, 8)
    for _ in range(4):
        batch.observe({3: 7, 4: 7}, step_of((3, 7, 1), (4, 7, 6)), 0.1)
    batch.observe({3: 5}, step_of((3, 5, 2)), 0.1)
    batch.observe({3: 7, 4: 7, 5: 7}, step_of((3, 7, -1), (4, 7, -1), (5, 7, 3)), 0.1)
    batch.observe({3: 7, 4: 7}, step_of((3, 7, -1), (4, 7, -1)), 0.1)
    assert alone.seen == [(5, 2)]
    two, three = made
    assert sorted(two.seen) == [(7, 1), (7, 1), (7, 6), (7, 6)]
    assert three.seen == [(7, 3)]


class Experts(Recorded):
    """Also keeps the prompts' seconds, the demand, the times and the misses. It expects 2 tokens in 0.5 s."""

    wants_experts = True
    expected = (2.0, 0.5)

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.prompts, self.counts, self.times = list[float](), list[tuple[int, int]](), list[Any]()

    def begin(self, spent_s: float) -> None:
        self.prompts.append(spent_s)

    def demand(self, counts: Int32Array, n_verified: int) -> None:
        self.counts.append((int(counts.sum()), n_verified))

    def observe(self, n_drafted: int, n_accepted: int, *times: Any) -> None:
        super().observe(n_drafted, n_accepted)
        self.times.append(times)


def test_a_governor_that_wants_experts_learns_times_and_misses() -> None:
    governor = Experts(3)
    batch = BatchGovernor(lambda: governor, lambda: Recorded(7), 8)
    step = step_of((0, 3, 1))
    step.batch = SimpleNamespace(
        draft_ns=6_000_000, demand=np.full((2, 4), 3, np.int32), n_verified=4,
        layer_costs=np.array([(3_000_000, 5), (1_000_000, 2)], COSTS),
    )  # fmt: skip
    batch.observe(batch.choose({0: 100}), step, 0.1)
    assert governor.seen == [(3, 1)]
    assert governor.times == [pytest.approx((6e-3, 0.1, 7, 4e-3))]
    assert governor.counts == [(2 * 4 * 3, 4)]


def test_the_chosen_lengths_are_counted() -> None:
    governor = Experts(6)
    batch = BatchGovernor(lambda: governor, lambda: Recorded(7), 8)
    for room in (100, 100, 2, 0):
        lengths = batch.choose({0: room})
        batch.observe(lengths, step_of((0, lengths[0], 0)), 0.1)
    assert batch.chosen == {6: 2, 2: 1, 0: 1}


def test_a_step_begins_with_the_time_of_the_prompts_before_it() -> None:
    governor = Experts(6)
    batch = BatchGovernor(lambda: governor, lambda: Recorded(7), 8)
    for spent_s in (0.25, 0.5):
        batch.prompt(spent_s)
    for _ in range(2):
        batch.choose({0: 100})
    assert governor.prompts == [0.75]


@pytest.mark.parametrize(("token_s", "drafts"), [(0.01, True), (1.0, False)])
def test_drafts_are_used_where_they_pay(token_s: float, drafts: bool) -> None:
    """Three sequences accept half of their drafts. A token takes next to nothing, or as long as a step."""
    rng = np.random.default_rng(1)
    batch = BatchGovernor(lambda: Recorded(0), lambda: RooflineGovernor(8, clock=lambda: 0.0), 8)
    chosen = []
    for _ in range(300):
        lengths = batch.choose(dict.fromkeys(range(3), 100))
        chosen.append(lengths[0])
        results = []
        for each, n in lengths.items():
            missed = np.flatnonzero(rng.random(n) >= 0.5)
            results.append((each, n, int(missed[0]) if len(missed) else n))
        step = step_of(*results)
        step.batch.draft_ns = int(0.01e9 * lengths[0])
        batch.observe(lengths, step, 1.0 + 0.01 * lengths[0] + token_s * 3 * (lengths[0] + 1))
    late = np.mean(chosen[100:])
    assert late > 2 if drafts else late < 0.2
