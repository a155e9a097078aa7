"""Sessions of several sequences report which experts a batch and each of its sequences used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from spac import _core
from tests.session.lab import GREEDY, Lab, prompt
from tests.session.several import CONTEXT, PROMPTS, alone, run, session


def test_the_batchs_demand_is_the_sum(lab: Lab, moe: Path) -> None:
    context = lab.context(moe, **CONTEXT, n_seq_max=3, kv_unified=True)
    several = _core.ParallelSession(context, None, lab.experts(moe))
    lab._closing.callback(several.close)
    ids = [several.join(each, **GREEDY) for each in PROMPTS]
    step = several.step([(i, 0) for i in ids], 200)
    experts = lab.experts(moe)
    assert experts is not None
    n_used = max(layer.n_used for layer in experts.layers)
    assert step.verified
    assert step.batch.n_verified == 3
    assert (step.batch.demand.sum(axis=1) == 3 * n_used).all()
    several.close()
    expected = np.zeros_like(step.batch.demand)
    for tokens in PROMPTS:
        single = lab.session(lab.context(moe, **CONTEXT), None, experts, **GREEDY)
        single.prefill(tokens)
        expected += single.step().demand
        single.close()
    assert (step.batch.demand == expected).all()


def test_each_sequence_has_the_counts_of_its_own_experts(lab: Lab, moe: Path) -> None:
    """One sequence alone has all counts of a step. Those of several add up, but for experts in common."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    if not experts.slots.n_slots:
        experts.attach_slots(experts.n_layer * experts.n_expert // 3)
    experts.submit(
        np.full((experts.n_layer, experts.n_expert), 9, np.int32), np.zeros(experts.n_layer, np.int32)
    )
    assert experts.settle(10)
    with session(lab, moe, experts=experts, draft=moe, draft_max=2) as several:
        ids = [several.join(each, **GREEDY) for each in PROMPTS]
        for turns in ([(ids[0], 2)], [(ids[0], 2), (ids[1], 0), (ids[2], 1)]):
            several.step([(i, 0) for i in ids], 200)
            before = dict(experts.stats)
            step = several.step(turns, 0)
            after = experts.stats
            total = {name: after[name] - before[name] for name in step.sequences[0].experts}
            own = [each.experts for each in step.sequences]
            summed = {name: sum(each[name] for each in own) for name in total}
            assert total["activations"] == summed["activations"] > total["activations_hit"] > 0
            assert total["activations_hit"] == summed["activations_hit"]
            assert all(each["distinct"] == each["distinct_hit"] + each["misses_cpu"] for each in own)
            assert summed["distinct"] >= total["distinct"]
            if len(turns) == 1:
                assert own == [total]
            sizes = [1 + each.n_drafted for each in step.sequences]
            assert [each["activations"] for each in own] == [
                n * sum(layer.n_used for layer in experts.layers) for n in sizes
            ]


def test_a_prompts_end_and_its_graphs(lab: Lab, moe: Path) -> None:
    """The listener is asked for the size of graphs, and shown the routes of each prompt's last tokens."""
    lab.context(moe)
    experts = lab.experts(moe)
    assert experts is not None
    texts = (prompt(200, 1), prompt(120, 2))
    expected = [alone(lab, moe, each, 8) for each in texts]
    alone_tails = []
    for each in texts:
        single = lab.session(lab.context(moe, n_ctx=512, n_batch=256, n_ubatch=256), None, experts, **GREEDY)
        single.on("prompt_tail", lambda: alone_tails.append(experts.routes()))
        single.prefill(each)
        single.close()
    asked: list[tuple[int, int]] = []
    tails: list[Any] = []

    def choose(n_pending: int, n_failed: int) -> int:
        asked.append((n_pending, n_failed))
        return n_pending

    context = lab.context(moe, **{**CONTEXT, "n_ctx": 1024, "n_batch": 512}, n_seq_max=2, kv_unified=True)
    with _core.ParallelSession(context, None, experts) as several:
        several.on("prompt_graph", choose)
        several.on("prompt_tail", lambda: tails.append(experts.routes()))
        ids = [several.join(each, **GREEDY) for each in texts]
        made = run(several, ids, 8, {}, n_prompt=512)
    assert asked == [(318, 0)], "both prompts in one graph"
    assert len(tails) == 2, "both end in it"
    for found, wanted in zip(tails, alone_tails, strict=True):
        assert found.shape == wanted.shape == (experts.n_layer, 32, found.shape[2])
        assert (found[:-1] == wanted[:-1]).all(), "the last layer computes no prompt"
    assert [made[i][:8] for i in ids] == expected
