"""These tests cover fetching inside a step.

Predictions are as good as requested, urgent copies overtake others, and all times count.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench.step_time.lookahead import Lookahead, LookaheadSimulation
from bench.step_time.machine import MACHINES, Model
from bench.step_time.predicted_routes import predict
from bench.step_time.simulation import Simulation
from bench.step_time.urgent_link import UrgentLink
from spac import scheduler
from spac.scheduler import Plan
from spac.scheduler.replay import Demand
from tools.twin.drift import Drift, simulate

N_LAYER, N_EXPERT, N_USED = 8, 32, 4
MODEL = Model(expert_bytes=1_000_000, draft_bytes=10_000_000)
DESKTOP = MACHINES["rtx4090"]


def local(n_step: int, n_token: int) -> Demand:
    """Return the demand of steps with drifting routes. All drafts are accepted."""
    taken = simulate(Drift(0.8, 0.97), N_EXPERT, N_USED, n_token=n_step * n_token, n_row=N_LAYER) > 0
    routes = np.argsort(~taken, axis=-1, kind="stable")[..., :N_USED]
    routes = routes.reshape(n_step, n_token, N_LAYER, N_USED).transpose(0, 2, 1, 3).astype(np.int32)
    counts = taken.reshape(n_step, n_token, N_LAYER, N_EXPERT).sum(1)
    plain = Demand.of(counts.astype(np.int32), N_USED)
    return replace(plain, routes=routes)


SINGLE, SEVERAL = local(200, 1), local(60, 5)


@pytest.mark.parametrize("recall", [0.5, 0.75, 0.9])
def test_predictions_are_as_good_as_asked_for(recall):
    predicted = predict(SINGLE, recall)
    assert predicted.agreement(SINGLE.counts) == pytest.approx((recall, recall), abs=0.02)
    sure = predicted.probability[predicted.chosen]
    assert float(sure.mean()) == pytest.approx(recall, abs=0.05)
    used = SINGLE.counts > 0
    for low, high in ((0.2, 0.5), (0.5, 0.8), (0.8, 1.0)):
        some = (predicted.probability > low) & (predicted.probability <= high)
        if some.sum() > 500:
            assert low - 0.05 < used[some].mean() < high + 0.05


@pytest.mark.parametrize("demand", [SINGLE, SEVERAL], ids=["single", "several"])
def test_predictions_by_chance_bring_nothing(demand):
    """Predictions by chance contain nothing of the true demand. They are the control of all gains."""
    guessed = predict(demand, N_USED / N_EXPERT)
    how = Lookahead(2, dense_s=0.0)
    plain = LookaheadSimulation(DESKTOP, MODEL, demand, 60, None, how).run(scheduler.make("logistic"), 0)
    found = LookaheadSimulation(DESKTOP, MODEL, demand, 60, guessed, how).run(scheduler.make("logistic"), 0)
    assert found.rate < 1.01 * plain.rate


def test_without_an_error_the_predictions_are_the_routes():
    for demand in (SINGLE, SEVERAL):
        predicted, used = predict(demand, 1.0), demand.counts > 0
        assert np.array_equal(predicted.chosen, used)
        assert predicted.probability[used].min() > 0.99
        assert predicted.probability[~used].max() < 0.01


@pytest.mark.parametrize("distance", [1, 2, 3])
def test_true_predictions_over_a_link_without_limit_miss_the_first_layers_alone(distance):
    quick = replace(DESKTOP, link=1e18, dram=2e18, link_busy=1e18)
    how = Lookahead(distance, lag_s=0.0)
    slots = N_LAYER * N_EXPERT // 2
    subject = LookaheadSimulation(quick, MODEL, SEVERAL, slots, predict(SEVERAL, 1.0), how)
    seen = [np.count_nonzero(counts[:distance]) for counts in SEVERAL.counts[10:]]
    spent = subject.run(scheduler.make("lru"), 10)
    assert spent.hits >= spent.distinct - sum(seen)
    assert spent.hits > Simulation(quick, MODEL, SEVERAL, slots).run(scheduler.make("lru"), 10).hits


def test_urgent_copies_take_the_link():
    machine = replace(DESKTOP, link=5e9, link_busy=4e9)
    subject = LookaheadSimulation(machine, MODEL, SINGLE, 60, predict(SINGLE, 0.7), Lookahead(2))
    spent = subject.run(scheduler.make("logistic"), 0)
    assert 0 < spent.urgent * MODEL.expert_bytes <= spent.uploads * MODEL.expert_bytes + MODEL.expert_bytes
    assert spent.uploads * MODEL.expert_bytes <= machine.link * spent.seconds
    assert spent.helped <= min(spent.urgent, spent.hits)


def test_looking_ahead_by_nothing_is_the_plain_simulation():
    """Only the masks differ. They are fixed a dense part earlier."""
    how = Lookahead(dense_s=0.0)
    found = LookaheadSimulation(DESKTOP, MODEL, SEVERAL, 60, None, how).run(scheduler.make("lru"), 0)
    plain = Simulation(DESKTOP, MODEL, SEVERAL, 60).run(scheduler.make("lru"), 0)
    assert found.urgent == found.helped == 0
    assert found.hits == pytest.approx(plain.hits, rel=0.02)
    assert found.seconds == pytest.approx(plain.seconds, rel=0.02)


def test_urgent_copies_overtake_and_spare_what_is_kept():
    link = UrgentLink([(4, 0), (4, 0)], [2], 100)
    priority = np.array([[9, 8, 7, 6], [5, 4, 3, 2]], np.int32)
    link.follow(Plan(priority, np.full(2, 8, np.int32)))
    link.run(1.0, 200)
    assert sorted(map(tuple, np.argwhere(link.slot_of >= 0))) == [(0, 0), (0, 1)]
    link.kept[0, 1] = True
    link.urge([(1, 2), (1, 3)])
    link.urge([(1, 2)])
    assert link.ahead == 200
    link.run(0.5, 100)
    assert link.slot_of[0, 0] == -1  # (0, 0) has the higher priority, but (0, 1) is kept
    link.relax(1)
    link.run(5.0, 100)
    assert sorted(map(tuple, np.argwhere(link.slot_of >= 0))) == [(0, 1), (1, 2)]
    assert link.urgent_uploads == 1
