"""The estimator equals Algorithm 1, transcribed line by line, one expert at a time, in exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spac.papers.moe_spac import MoeSpacOptions
from spac.papers.utility import UtilityEstimator


@dataclass
class Algorithm1:
    """One expert of Algorithm 1. The numbers in comments are the printed algorithm's lines."""

    K: int
    λ: Fraction
    adapt: bool = True
    s: int = 0  # 2
    last: int = 0  # f_0
    up: Fraction = Fraction(3)  # section 4.4; 3 has floor(γ/2)
    down: Fraction = Fraction(1)

    def step(self, f: int) -> int:
        change = f - self.last  # 7
        self.last = f
        if self.up <= change:  # 9
            self.s = min(self.K, self.s + 1)  # 10
        elif self.down <= -change:  # 11
            self.s = max(0, self.s - 1)  # 12
        if self.adapt and change > 0:  # 17
            self.up = Fraction(math.floor((1 - self.λ) * self.up + self.λ * change))  # 18
        elif self.adapt and change < 0:  # 20
            self.down = Fraction(math.floor((1 - self.λ) * self.down + self.λ * -change))  # 22
        return self.s


def estimator(n_expert: int, **options: Any) -> UtilityEstimator:
    return UtilityEstimator(np.ones((1, n_expert), np.bool_), MoeSpacOptions(**options))


def run(demand: np.ndarray, tokens: list[int] | None = None, **options: Any) -> np.ndarray:
    """Return the utilities after every step of demand [T, 1, N]: int32 [T, 1, N]. A step has 9 tokens."""
    subject = estimator(demand.shape[2], **options)
    tokens = tokens or [9] * len(demand)
    return np.array([subject.observe(f, n).copy() for f, n in zip(demand, tokens, strict=True)])


@st.composite
def histories(draw: st.DrawFn) -> tuple[int, np.ndarray]:
    """Draw γ and demand int32 [T, 1, N]. The demand is random or adversarial: jumps of all, sawteeth, or
    one-sided ramps."""
    γ, n_step, n_expert = draw(st.integers(0, 12)), draw(st.integers(1, 30)), draw(st.integers(1, 4))
    columns = []
    for _ in range(n_expert):
        match draw(st.sampled_from(["random", "square", "sawtooth", "rest"])):
            case "random":
                column = draw(st.lists(st.integers(0, γ + 1), min_size=n_step, max_size=n_step))
            case "square":
                period = draw(st.integers(1, 4))
                column = [(γ + 1) * (t // period % 2) for t in range(n_step)]
            case "sawtooth":
                step = draw(st.integers(1, 3))
                column = [(γ + 1 - step * t) % (γ + 2) for t in range(n_step)]
            case _:
                column = [draw(st.integers(0, γ + 1))] * n_step
        columns.append(column)
    return γ, np.array(columns, np.int32).T[:, None, :].copy()


# Doubles do not have these decimal fractions, so floors of whole results are tested.
FORGETTING = st.integers(0, 20).map(lambda n: Fraction(n, 20))


@given(histories(), st.integers(1, 16), FORGETTING, st.booleans())
@example((8, np.array([[[9]], [[0]]] * 40, np.int32)), 4, Fraction(1, 10), True)
def test_the_printed_form_is_algorithm_1(history, levels, forgetting, adapt):
    _, demand = history
    utility = run(demand, levels=levels, forgetting=float(forgetting), adapt=adapt, printed=True)
    for i in range(demand.shape[2]):
        expert = Algorithm1(levels, forgetting, adapt)
        assert [expert.step(int(f)) for f in demand[:, 0, i]] == utility[:, 0, i].tolist()


@given(histories(), st.integers(1, 9), st.floats(0, 1), st.booleans())
def test_our_form_against_one_expert_at_a_time(history, levels, forgetting, adapt):
    γ, demand = history
    subject = estimator(demand.shape[2], levels=levels, forgetting=forgetting, adapt=adapt)
    state = [[0, 1.0, 1.0, 0.0] for _ in range(demand.shape[2])]
    tokens = [1 + (3 * t) % (γ + 1) for t in range(len(demand))]
    for f, n in zip(demand, tokens, strict=True):
        utility = subject.observe(np.minimum(f, n), n)
        for i, (s, up, down, last) in enumerate(state):
            now = last + min(1.0, n / 9) * (float(min(f[0, i], n)) / n - last)
            change = levels * math.sqrt(now) - s
            if change >= up * 0.75:
                s = min(levels, s + 1)
            elif -change >= down * 0.75:
                s = max(0, s - 1)
            if adapt and change > 0:
                up = max(1.0, (1 - forgetting) * up + forgetting * change)
            elif adapt and change < 0:
                down = max(1.0, (1 - forgetting) * down + forgetting * -change)
            state[i] = [s, up, down, now]
        assert utility[0].tolist() == [s for s, *_ in state]
        np.testing.assert_array_equal(subject.up[0], [up for _, up, _, _ in state])
        assert (subject.down >= 1).all()


@given(histories(), st.booleans())
def test_utility_stays_within_its_range_and_moves_one_level_at_a_time(history, printed):
    utility = run(history[1], levels=4, printed=printed)
    assert utility.min() >= 0
    assert utility.max() <= 4
    assert (np.abs(np.diff(utility, axis=0)) <= 1).all()


@pytest.mark.parametrize("n_token", [1, 3, 9, 16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.6, 1.0])
def test_a_steady_demand_finds_its_level_whatever_the_number_of_tokens(n_token, share):
    count = round(share * n_token)
    utility = run(np.full((200, 1, 1), count, np.int32), [n_token] * 200, levels=4)[-1].item()
    assert abs(utility - 4 * math.sqrt(count / n_token)) < 0.75
