"""These tests cover the model of a step's time: its limits, its bounds, and what it shares with the
replay."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.schedulers.machine import MACHINES, Machine, Model
from bench.schedulers.simulation import Simulation
from spac import scheduler
from spac.machine.arrays import Int32Array
from spac.replay import Demand, replay
from spac.scheduler.lru import LruScheduler
from tools.twin.drift import Drift, simulate

N_LAYER, N_EXPERT, N_USED = 6, 32, 4
MODEL = Model(expert_bytes=1_000_000, draft_bytes=10_000_000)
DESKTOP = MACHINES["rtx4090"]


def local(n_step: int, n_token: int) -> Demand:
    """Return the demand of steps with drifting routes."""
    single = simulate(Drift(0.8, 0.97), N_EXPERT, N_USED, n_token=n_step * n_token, n_row=N_LAYER)
    counts = single.reshape(n_step, n_token, N_LAYER, N_EXPERT).sum(1)
    return Demand.of(counts.astype(np.int32), N_USED)


DEMAND = local(60, 5)
DISTINCT = int(np.count_nonzero(DEMAND.counts))


def fixed(machine: Machine, resident: np.ndarray):
    return Simulation(machine, MODEL, DEMAND, 0).fixed(resident, 0)


def test_with_all_resident_the_device_decides():
    spent = fixed(DESKTOP, np.ones((N_LAYER, N_EXPERT), np.bool_))
    assert spent.hit_rate == 1
    assert spent.hand_off == spent.contention == 0
    assert spent.experts == pytest.approx(DISTINCT * MODEL.expert_bytes / DESKTOP.device)
    assert spent.dense == pytest.approx(60 * DESKTOP.dense(5))
    assert spent.host == pytest.approx(60 * DESKTOP.step_s)
    assert spent.draft == pytest.approx(60 * 4 * DESKTOP.draft_token_s(MODEL))


def test_with_none_resident_the_cpu_decides():
    spent = fixed(DESKTOP, np.zeros((N_LAYER, N_EXPERT), np.bool_))
    assert spent.hits == 0
    pairs = int(DEMAND.counts.sum())
    reading = MODEL.expert_bytes / DESKTOP.cpu
    fixed_s = 60 * N_LAYER * DESKTOP.lane_s
    assert spent.experts == pytest.approx(fixed_s + reading * (DISTINCT + DESKTOP.pair_share * pairs))
    assert spent.hand_off == pytest.approx(60 * N_LAYER * DESKTOP.hand_off_s)
    assert spent.tokens == 60 * 5


def test_a_layer_with_one_expert_missing_waits_for_the_cpu():
    """This also holds if no token wants that expert."""
    resident = np.ones((N_LAYER, N_EXPERT), np.bool_)
    counts = DEMAND.counts.copy()
    counts[:, 1, 7] = 0
    resident[1, 7] = False
    spent = Simulation(DESKTOP, MODEL, replace(DEMAND, counts=counts), 0).fixed(resident, 0)
    assert spent.hit_rate == 1
    assert spent.hand_off == pytest.approx(60 * DESKTOP.hand_off_s)


def test_on_flat_routing_whole_layers_are_as_fast_as_llama_cpps():
    """Where all experts are alike, slots that spare hand-offs are the best, and the schedulers find them."""
    single = simulate(Drift(0.0, 0.97), N_EXPERT, N_USED, n_token=900, n_row=N_LAYER)
    demand = Demand.of(single.reshape(900, N_LAYER, N_EXPERT).astype(np.int32), N_USED)
    # the times of so few layers
    machine = replace(MACHINES["h200"], step_s=0, dense_s=0.3e-3)
    subject = Simulation(machine, MODEL, demand, 3 * N_EXPERT)
    whole = np.zeros((N_LAYER, N_EXPERT), np.bool_)
    whole[:3] = True
    rival = subject.fixed(whole, 600).rate
    for name, without in (("logistic", "whole=off"), ("moe-spac", "learned=off")):
        assert subject.run(scheduler.make(name), 600).rate > 0.99 * rival
        assert subject.run(scheduler.make(f"{name}:{without}"), 600).rate < 0.9 * rival


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 2**32), st.sampled_from(sorted(MACHINES)))
def test_more_residents_are_never_slower(seed, name):
    order = np.random.default_rng(seed).permutation(N_LAYER * N_EXPERT)
    times = []
    for n in (0, 20, 60, 120, order.size):
        resident = np.zeros(order.size, np.bool_)
        resident[order[:n]] = True
        times.append(fixed(MACHINES[name], resident.reshape(N_LAYER, N_EXPERT)).seconds)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0]


# Schedulers that use costs are left out, because the replay has no costs.
@pytest.mark.parametrize("name", ["lru", "ewma", "logistic:margin=0.2"])
def test_a_link_without_limit_is_the_replay(name):
    """Where copies take no time, all of them finish before the first layer, as in the replay."""
    quick = replace(DESKTOP, link=1e18, dram=2e18, link_busy=1e18)
    found = Simulation(quick, MODEL, DEMAND, 40).run(scheduler.make(name), 0)
    known = replay(scheduler.make(name), DEMAND, 40)
    assert (found.hits, found.distinct) == (known.distinct_hit, known.distinct)
    assert found.contention < 1e-6 * found.seconds


@pytest.mark.parametrize("name", ["lru", "moe-spac", "logistic"])
@pytest.mark.parametrize("link", [1e9, 5e9, 25e9])
def test_uploads_take_the_link_and_slow_the_cpu(name, link):
    # Only experts take time, so no upload runs without them.
    machine = replace(
        DESKTOP, link=link, link_busy=0.8 * link, step_s=0, dense_s=0, dense_token_s=0, hand_off_s=0, lane_s=0
    )
    spent = Simulation(machine, MODEL, local(300, 1), 40).run(scheduler.make(name), 0)
    assert 0 < spent.uploads * MODEL.expert_bytes <= link * spent.seconds
    assert 0 <= spent.contention <= spent.experts * (1 - machine.slowed)
    assert (spent.contention > 0) == (machine.slowed < 1)


def test_no_more_is_resident_than_there_are_slots():
    seen: list[Int32Array] = []

    class Watched(LruScheduler):
        def on(self, event, view):
            seen.append(np.sort(view.slot_of[view.slot_of >= 0]))
            return super().on(event, view)

    Simulation(DESKTOP, MODEL, DEMAND, 40).run(Watched(), 0)
    assert max(map(len, seen)) <= 40
    assert all(len(np.unique(slots)) == len(slots) for slots in seen)


def test_a_machine_reads_no_more_than_its_memory_gives():
    with pytest.raises(ValueError, match="rtx4090"):
        replace(DESKTOP, cpu=70e9)
