"""The times and work of every layer of a verification agree with demand, residency and the counters."""

from __future__ import annotations

import numpy as np
import pytest

from tests.session.lab import generate, prompt, submit

FIELDS = (
    "host_ns", "wait_ns", "host_activations", "host_distinct", "device_activations", "device_distinct",
    "loaded_distinct",
)  # fmt: skip


@pytest.mark.parametrize("n_resident", [0, 1, 3, 5])
def test_both_sides_together(lab, moe, other, n_resident):
    engine = lab.engine(moe, draft=other, draft_length=4)
    experts, uploads = engine.experts, []
    generate(engine, prompt(40), 1)
    assert experts.stats["host_compute_ns"] > 0
    costs = experts.take_layer_costs()
    assert all(not costs[name].any() for name in FIELDS), "a prompt costs nothing"
    submit(experts, n_resident)
    before = dict(experts.stats)

    def see(step):
        nonlocal before
        on_device = np.where(experts.residency() >= 0, step.demand, 0)
        on_host = step.demand - on_device
        costs, now = step.layer_costs, dict(experts.stats)
        assert costs.dtype.names == FIELDS
        assert costs.shape == (experts.n_layer,)
        assert not costs.flags.writeable
        for name, demand in (("device", on_device), ("host", on_host)):
            assert costs[f"{name}_activations"].tolist() == demand.sum(axis=1).tolist()
            assert costs[f"{name}_distinct"].tolist() == (demand > 0).sum(axis=1).tolist()
        assert ((costs["host_ns"] > 0) == (costs["host_activations"] > 0)).all()
        if uploads:  # before the first step, the prompt has taken time too
            assert costs["host_ns"].sum() == now["host_compute_ns"] - before["host_compute_ns"]
            assert costs["wait_ns"].sum() == now["host_wait_ns"] - before["host_wait_ns"]
        uploads.append((step.upload_bytes, step.upload_ns))
        before = now

    engine.loop.on("verify_end", see)
    generate(engine, prompt(40), 8)
    stats = experts.stats
    assert uploads[0] == (stats["upload_bytes"], stats["upload_ns"])
    assert set(uploads[1:]) == {(0, 0)}
