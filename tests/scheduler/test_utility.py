"""The estimator equals Algorithm 1, transcribed line by line, one expert at a time, in exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spac.errors import InputError
from spac.scheduler.utility import FIXED, UtilityEstimator, UtilityOptions


@dataclass
class Algorithm1:
    """One expert of Algorithm 1. The numbers in comments are the printed algorithm's lines."""

    K: int
    λ: Fraction
    γ: int
    adapt: bool = True
    boundaries: str = "half"
    s: int = 0  # 2
    last: int = 0  # f_0

    def __post_init__(self) -> None:
        self.up = self.down = Fraction(self.γ // 2)  # 3
        if not self.adapt or self.boundaries == "fixed":  # section 4.4
            self.up, self.down = map(Fraction, FIXED["literal"])

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


def run(options: UtilityOptions, demand: np.ndarray, tokens: list[int] | None = None) -> np.ndarray:
    """Return the utilities after every step of demand [T, L, N]: int32 [T, L, N]."""
    estimator = UtilityEstimator(np.ones(demand.shape[1:], np.bool_), options)
    tokens = tokens or [options.draft_length + 1] * len(demand)
    return np.array([estimator.observe(f, n).copy() for f, n in zip(demand, tokens, strict=True)])


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


@given(histories(), st.integers(1, 16), FORGETTING, st.booleans(), st.sampled_from(["half", "fixed"]))
@example((8, np.array([[[9]], [[0]]] * 40, np.int32)), 4, Fraction(1, 10), True, "half")
def test_the_literal_form_is_algorithm_1(history, levels, forgetting, adapt, boundaries):
    γ, demand = history
    options = UtilityOptions(levels, float(forgetting), "literal", γ, adapt, boundaries)
    utility = run(options, demand)
    for i in range(demand.shape[2]):
        expert = Algorithm1(levels, forgetting, γ, adapt, boundaries)
        assert [expert.step(int(f)) for f in demand[:, 0, i]] == utility[:, 0, i].tolist()


@given(histories())
def test_literal_boundaries_can_only_fall_by_default(history):
    """floor(0.9 θ + 0.1 |Δ|) > θ takes |Δ| >= θ + 10, which a draft of 8 tokens cannot show."""
    γ, demand = history
    γ, demand = min(γ, 8), np.minimum(demand, 9)
    estimator = UtilityEstimator(
        np.ones((1, demand.shape[2]), np.bool_), UtilityOptions(4, 0.1, "literal", γ)
    )
    for f in demand:
        up, down = estimator.up.copy(), estimator.down.copy()
        estimator.observe(f, γ + 1)
        assert (estimator.up <= up).all()
        assert (estimator.down <= down).all()
        assert (np.minimum(estimator.up, estimator.down) >= min(1, γ // 2)).all(), "they end at 1"


def test_the_corners_of_the_printed_algorithm():
    resting = np.zeros((6, 1, 1), np.int32)
    assert run(UtilityOptions(form="literal", draft_length=1), resting).ravel().tolist() == [1, 2, 3, 4, 4, 4]
    for form in ("real", "level"):
        assert not run(UtilityOptions(form=form, draft_length=1), resting).any()
    # A demand that falls slowly never reaches the boundary. The utility stays too high.
    slow = np.array([9, 9, *range(8, -1, -1), 0, 0, 0, 0], np.int32).reshape(-1, 1, 1)
    assert run(UtilityOptions(form="real"), slow)[-3:].ravel().tolist() == [1, 1, 1]
    assert run(UtilityOptions(form="level"), slow)[-1].item() == 0


@given(histories(), st.integers(1, 9), st.floats(0, 1), st.sampled_from(["level", "real"]), st.booleans())
def test_the_other_forms_against_one_expert_at_a_time(history, levels, forgetting, form, adapt):
    γ, demand = history
    options = UtilityOptions(levels, forgetting, form, γ, adapt)
    estimator = UtilityEstimator(np.ones((1, demand.shape[2]), np.bool_), options)
    state = [[0, *options.start, 0.0] for _ in range(demand.shape[2])]
    tokens = [1 + (3 * t) % (γ + 1) for t in range(len(demand))]
    for f, n in zip(demand, tokens, strict=True):
        utility = estimator.observe(np.minimum(f, n), n)
        for i, (s, up, down, last) in enumerate(state):
            count = float(min(f[0, i], n))
            if form == "level":
                now = last + min(1.0, n / (γ + 1)) * (count / n - last)
                change = levels * math.sqrt(now) - s
            else:
                now = count * ((γ + 1) / n)
                change = now - last
            reach = 0.75 if form == "level" else 1.0
            if change >= up * reach:
                s = min(levels, s + 1)
            elif -change >= down * reach:
                s = max(0, s - 1)
            if adapt and change > 0:
                up = max(1.0, (1 - forgetting) * up + forgetting * change)
            elif adapt and change < 0:
                down = max(1.0, (1 - forgetting) * down + forgetting * -change)
            state[i] = [s, up, down, now]
        assert utility[0].tolist() == [s for s, *_ in state]
        np.testing.assert_array_equal(estimator.up[0], [up for _, up, _, _ in state])
        assert (estimator.down >= 1).all()


@given(histories(), st.sampled_from(["level", "real"]))
def test_utility_stays_within_its_range_and_moves_one_level_at_a_time(history, form):
    γ, demand = history
    utility = run(UtilityOptions(form=form, draft_length=γ), demand)
    assert utility.min() >= 0
    assert utility.max() <= 4
    assert (np.abs(np.diff(utility, axis=0)) <= 1).all()


@pytest.mark.parametrize("n_token", [1, 3, 9, 16])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.25, 0.6, 1.0])
def test_a_steady_demand_finds_its_level_whatever_the_number_of_tokens(n_token, share):
    count = round(share * n_token)
    utility = run(UtilityOptions(), np.full((200, 1, 1), count, np.int32), [n_token] * 200)[-1].item()
    assert abs(utility - 4 * math.sqrt(count / n_token)) < 0.75


def test_padding_has_no_utility():
    exists = np.array([[True, True, False]])
    estimator = UtilityEstimator(exists, UtilityOptions(form="literal", draft_length=0))
    for _ in range(3):
        utility = estimator.observe(np.zeros((1, 3), np.int32), 1)
    assert utility.tolist() == [[3, 3, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"levels": 0}, "levels"),
        ({"forgetting": 1.5}, "forgetting"),
        ({"form": "best"}, "level, real, literal"),
        ({"draft_length": -1}, "draft_length"),
        ({"boundaries": "five"}, "half, fixed"),
    ],
)
def test_options_that_cannot_work_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        UtilityOptions(**options)
