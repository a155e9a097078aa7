"""The times and work of every layer of a verification agree with demand, residency and the counters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.session.lab import GREEDY

FIELDS = (
    "host_ns", "wait_ns", "host_activations", "host_distinct", "device_activations", "device_distinct",
    "loaded_distinct",
)  # fmt: skip


@pytest.fixture
def session(lab, moe, other):
    target, draft = lab.context(moe), lab.context(other)
    return lab.session(target, draft, lab.experts(moe), draft_max=4, **GREEDY)


@pytest.fixture
def experts(lab, moe, session):
    return lab.experts(moe)


def test_all_on_the_host(session, experts):
    session.prefill([1, 2, 3, 4])
    for _ in range(3):
        before = dict(experts.stats)
        step = session.step()
        costs = step.layer_costs
        assert costs.dtype.names == FIELDS
        assert costs.shape == (experts.n_layer,)
        assert not costs.flags.writeable
        assert costs["host_activations"].tolist() == step.demand.sum(axis=1).tolist()
        assert costs["host_distinct"].tolist() == (step.demand > 0).sum(axis=1).tolist()
        assert not costs["device_activations"].any()
        assert not costs["device_distinct"].any()
        spent = {name: value - before[name] for name, value in experts.stats.items()}
        assert costs["host_ns"].sum() == spent["host_compute_ns"]
        assert costs["wait_ns"].sum() == spent["host_wait_ns"]
        assert (costs["host_ns"] > 0).all()


@pytest.mark.parametrize("n_resident", [1, 3, 5])
def test_both_sides_together(session, experts, n_resident):
    n_layer, n_expert = experts.n_layer, experts.n_expert
    experts.attach_slots(n_layer * n_expert)
    priority = np.zeros((n_layer, n_expert), np.int32)
    priority[:, :n_resident] = 1
    experts.submit(priority, np.ones(n_layer, np.int32))
    assert experts.settle(10)
    session.prefill([1, 2, 3, 4])
    step = session.step()
    on_device = np.where(priority > 0, step.demand, 0)
    on_host = step.demand - on_device
    costs = step.layer_costs
    assert costs["device_activations"].tolist() == on_device.sum(axis=1).tolist()
    assert costs["device_distinct"].tolist() == (on_device > 0).sum(axis=1).tolist()
    assert costs["host_activations"].tolist() == on_host.sum(axis=1).tolist()
    assert costs["host_distinct"].tolist() == (on_host > 0).sum(axis=1).tolist()
    assert ((costs["host_ns"] > 0) == (costs["host_activations"] > 0)).all()
    assert step.n_uploads == n_layer * n_resident
    assert step.upload_bytes == experts.stats["upload_bytes"] > 0
    assert step.upload_ns == experts.stats["upload_ns"] > 0
    again = session.step()
    assert (again.n_uploads, again.upload_bytes, again.upload_ns) == (0, 0, 0)


def test_a_prompt_costs_nothing(session, experts):
    session.prefill(np.arange(1, 40, dtype=np.int32))
    assert experts.stats["host_compute_ns"] > 0
    costs = experts.take_layer_costs()
    assert all(not costs[name].any() for name in FIELDS)


def test_a_model_without_experts_has_no_costs(lab, other):
    session = lab.plain(other, **GREEDY)
    session.prefill([1, 2])
    step = session.step()
    assert step.layer_costs.shape == (0,)
    assert step.layer_costs.dtype.names == FIELDS
