"""With decayed counts, every pool wants its best experts. It wants more than it holds only at ties."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from spac import scheduler
from spac.scheduler import Event
from tests.scheduler.views import demands, make_view, models


@given(models(), st.data())
def test_each_pool_wants_its_best(model, data):
    n_experts, pools, slots = model
    subject = scheduler.make("ewma")
    plan = subject.on(Event.START, make_view(n_experts, slots, pools))
    assert not plan.wanted.any()
    score = np.zeros((len(n_experts), max(n_experts)))
    for _ in range(data.draw(st.integers(1, 4))):
        demand = data.draw(demands(n_experts))
        plan = subject.on(Event.VERIFY_END, make_view(n_experts, slots, pools, demand, n_verified=3))
        score = 0.65 * score + 0.35 * demand / 3
        for pool, n_slots in enumerate(slots):
            members = np.array(pools) == pool
            wanted, values = plan.wanted[members], score[members]
            wanted_scores, others = values[wanted], values[~wanted]
            if n_slots == 0:
                assert not wanted.any()
            elif wanted.any() and others.size:
                assert wanted_scores.min() >= others.max() - 2**-16  # priorities are rounded scores
            worst = wanted_scores.min(initial=1.0)
            assert (wanted_scores > worst + 2**-15).sum() < max(1, n_slots)
            assert wanted.sum() >= min(n_slots, (values > 2**-15).sum())
