"""Predictions are right, by hand and for an engine's counts."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import Plan, make
from spac.stats.prediction import PredictionStats, given_options

ALL = np.ones((2, 3), np.bool_)


def plan(wanted):
    return Plan(np.asarray(wanted, np.int32), np.ones(2, np.int32))


def test_by_hand():
    stats = PredictionStats()
    demand = np.array([[4, 0, 1], [0, 3, 0]], np.int32)
    stats.observe(demand, plan([[1, 1, 0], [1, 0, 0]]), ALL)
    assert (
        stats.true_hot,
        stats.false_hot,
        stats.true_cold,
        stats.false_cold,
    ) == (1, 2, 1, 2)
    assert stats.prediction == {
        "accuracy": 2 / 6,
        "precision": 1 / 3,
        "recall": 1 / 3,
        "activated": 0.5,
    }


def test_padding_is_no_prediction():
    stats, exists = PredictionStats(), ALL.copy()
    exists[1, 2] = False
    stats.observe(np.zeros((2, 3), np.int32), plan(np.ones((2, 3))), exists)
    assert stats.true_hot + stats.false_hot + stats.true_cold + stats.false_cold == 5


def test_nothing_seen_is_nothing_known():
    assert PredictionStats().prediction is None


@given(
    arrays(np.int32, (5, 2, 3), elements=st.integers(0, 4)),
    arrays(np.int32, (5, 2, 3), elements=st.integers(0, 3)),
    arrays(np.int32, (5, 2), elements=st.integers(0, 3)),
)
def test_against_the_definitions(demands, priorities, thresholds):
    stats = PredictionStats()
    right = total = hot = used = both = 0
    for demand, priority, threshold in zip(demands, priorities, thresholds, strict=True):
        stats.observe(demand, Plan(priority, threshold), ALL)
        for index in np.ndindex(2, 3):
            wanted, activated = priority[index] >= threshold[index[0]], demand[index] > 0
            right, total = right + (wanted == activated), total + 1
            hot, used, both = hot + wanted, used + activated, both + (wanted and activated)
    prediction = stats.prediction
    assert prediction["accuracy"] == pytest.approx(right / total)
    assert prediction["activated"] == pytest.approx(used / total)
    assert prediction["precision"] == (pytest.approx(both / hot) if hot else None)
    assert prediction["recall"] == (pytest.approx(both / used) if used else None)


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        ("moe-spac", {}, {}),
        ("moe-spac", {"levels": 8, "balance": False}, {"levels": 8, "balance": False}),
        ("logistic", {"margin": 0.5}, {"margin": 0.5}),
        ("lru", {}, {}),
    ],
)
def test_options_that_are_no_defaults(name, options, known):
    assert given_options(make(name, **options), options) == known


def run(scheduler, n=30):
    config = EngineConfig(
        target=demo.TARGET, draft=demo.DRAFT, device="simulated", threads=1, ctx=512, draft_length=4,
        scheduler=scheduler, slots=0.25, sampling=SamplingConfig(temp=0.0, seed=1),
    )  # fmt: skip
    with Engine(config) as engine:
        before = dict(engine.experts.stats)
        generation = engine.generate(demo.PROMPT, n)
        "".join(generation)
        counts = {name: value - before[name] for name, value in engine.experts.stats.items()}
        return generation.stats, counts


@pytest.mark.parametrize("scheduler", ["lru", "moe-spac:levels=6", "static"])
def test_an_engine_counts_them(scheduler):
    stats, counts = run(scheduler)
    data = json.loads(stats.to_json())
    assert data["reuse"] == pytest.approx(counts["activations"] / counts["distinct"])
    prediction = data["prediction"]
    assert prediction["activated"] == pytest.approx(counts["distinct"] / (stats.steps * stats.n_experts))
    assert 0 < prediction["accuracy"] < 1
    assert data["scheduler_s"] > 0
    assert data["scheduler_ms_per_step"] == pytest.approx(1e3 * data["scheduler_s"] / stats.steps)
    assert data["scheduler_share"] == pytest.approx(data["scheduler_s"] / data["decode_s"])
    assert data["scheduler"] == scheduler.partition(":")[0]
    assert data["scheduler_options"] == ({"levels": 6} if "levels" in scheduler else {})
    if scheduler == "static":
        # The set is resident from the start. So its used experts are both the true predictions and the hits.
        assert prediction["recall"] == pytest.approx(stats.hit_rate_distinct, abs=0.05)
        assert data["uploads_wasted"] == data["evictions_early"] == 0
    else:
        assert 0 < data["uploads_wasted"] <= data["evictions"]
        assert 0 < data["evictions_early"] <= data["evictions"]
        assert data["upload_s"] > 0
