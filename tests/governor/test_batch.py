"""The draft length of a batch of sequences."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from spac.governor import BatchGovernor, FixedGovernor, Governor, RooflineGovernor


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
