"""Draft lengths of several sequences: the best ones by the model, and what is learned from steps."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spac.governor import BatchLengths
from spac.governor.allocation import DraftCosts, Prospects
from spac.governor.batch_lengths import Outcome

rates = st.lists(st.lists(st.floats(0.0, 1.0), min_size=3, max_size=3), min_size=1, max_size=3)
seconds = st.floats(0.0, 1.0)


def theta(prospects: Prospects, lengths: np.ndarray) -> float:
    tokens, took = prospects.expect(lengths)
    return tokens / took


@settings(max_examples=60, deadline=None)
@given(rates, st.lists(seconds, min_size=12, max_size=12), seconds, seconds, seconds, st.integers(1, 3),
       st.floats(0.3, 1.0), st.data())  # fmt: skip
def test_the_best_lengths(accept, slopes, base_s, pass_s, token_s, shortest, go_on, data) -> None:
    """The greedy order finds the best of all lengths unless drafts may stop early."""
    n = len(accept)
    prospects = Prospects(
        np.array(accept), np.full((n, 3), go_on), 0.1 + np.cumsum(slopes), DraftCosts(base_s, pass_s, token_s)
    )
    rooms = np.array(data.draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)))
    found = prospects.best(rooms, shortest=shortest)
    assert (found <= rooms).all()
    assert ((found == 0) | (found >= shortest)).all()
    allowed = [[0, *range(shortest, min(3, room) + 1)] for room in rooms]
    best = max(theta(prospects, np.array(each)) for each in product(*allowed))
    if go_on == 1.0 and shortest == 1:
        assert theta(prospects, found) == pytest.approx(best)
    assert theta(prospects, found) >= 0.8 * best


def test_a_budget_limits_the_step() -> None:
    prospects = Prospects(np.ones((2, 4)), np.ones((2, 4)), np.linspace(1.0, 1.9, 10), DraftCosts(0, 0, 0))
    rooms = np.array([4, 4])
    assert prospects.best(rooms).tolist() == [4, 4]
    limited = prospects.best(rooms, budget_s=1.45)
    assert limited.sum() == 3  # five tokens take 1.4 s
    assert prospects.best(rooms, budget_s=0.5).tolist() == [0, 0]


class Batches:
    """Sequences with known acceptance, and a time of a step by its tokens."""

    def __init__(self, accept: list[float], token_s: float, draft_s: float, seed: int) -> None:
        self.accept, self.token_s, self.draft_s = accept, token_s, draft_s
        self.rng = np.random.default_rng(seed)

    def seconds(self, lengths: list[int]) -> tuple[float, float]:
        """Return the seconds of the drafts and of the step."""
        draft = max(lengths) * self.draft_s
        return draft, draft + 1.0 + self.token_s * (len(lengths) + sum(lengths))

    def theta(self, lengths: list[int]) -> float:
        tokens = [sum(p**j for j in range(k + 1)) for k, p in zip(lengths, self.accept, strict=True)]
        return sum(tokens) / self.seconds(lengths)[1]

    def run(self, chooser: BatchLengths, steps: int) -> list[list[int]]:
        """Return the lengths of each step."""
        found = []
        for _ in range(steps):
            lengths = chooser.choose(dict.fromkeys(range(len(self.accept)), 100))
            found.append(list(lengths.values()))
            outcomes = []
            for each, k in lengths.items():
                misses = np.flatnonzero(self.rng.random(k) >= self.accept[each])
                outcomes.append(Outcome(each, k, int(misses[0]) if len(misses) else k))
            noise = float(np.exp(self.rng.normal(0, 0.05))) * (5 if self.rng.random() < 0.03 else 1)
            draft_s, step_s = self.seconds(found[-1])
            chooser.observe(outcomes, draft_s * noise, step_s * noise)
        return found


@pytest.mark.parametrize(("token_s", "draft_s", "seed"), [(0.01, 0.02, 1), (0.05, 0.05, 2), (0.2, 0.05, 3)])
def test_tokens_go_where_acceptance_promises_most(token_s: float, draft_s: float, seed: int) -> None:
    """Two of four sequences are easy. The share of the best throughput counts the cost of learning."""
    batches = Batches([0.9, 0.1, 0.85, 0.2], token_s, draft_s, seed)
    found = batches.run(BatchLengths(8, 4, clock=lambda: 0.0), 250)
    easy = [0, *range(1, 9)]
    best = max(batches.theta([a, b, c, d]) for a, b, c, d in product(easy, (0, 1, 2), easy, (0, 1, 2)))
    late = np.mean([batches.theta(each) for each in found[80:]])
    assert late > 0.93 * best
    mean = np.mean(found[80:], axis=0)
    if best > 1.05 * batches.theta([0, 0, 0, 0]):
        assert min(mean[0], mean[2]) > max(mean[1], mean[3]) + 1


def test_a_full_batch_drafts_nothing() -> None:
    """A token costs what it promises at most, so no draft pays."""
    batches = Batches([0.6] * 8, 1.0, 0.1, 1)
    found = batches.run(BatchLengths(4, 8, clock=lambda: 0.0), 200)
    assert np.mean(found[50:]) < 0.1


def test_sequences_come_and_go() -> None:
    """A new sequence starts from what all have shown. Rooms are respected."""
    batches = Batches([0.9] * 3, 0.02, 0.02, 2)
    chooser = BatchLengths(8, 3, clock=lambda: 0.0)
    batches.run(chooser, 60)
    lengths = chooser.choose({2: 100, 7: 100, 8: 1})
    assert lengths[7] >= 2
    assert lengths[8] <= 1


def test_what_a_pause_showed_is_gone_on_with() -> None:
    """Drafts did not pay. Then a text agrees with them, so they promise more and are tried at once."""
    batches, chooser = Batches([0.05, 0.05], 0.2, 0.1, 1), BatchLengths(4, 2)
    assert chooser.promise(np.ones(64, np.bool_), 2) == math.inf, "nothing was measured"
    batches.run(chooser, 200)
    assert chooser.in_force == 0
    right, wrong = np.ones(64, np.bool_), np.zeros(64, np.bool_)
    assert chooser.promise(right, 2) < chooser.promise(wrong, 2)
    chooser.resume(right)
    chooser.choose({0: 100, 1: 100})
    assert chooser.in_force > 0
