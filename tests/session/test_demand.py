"""The demand of a step holds the target's experts of its verification, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from spac import _core
from spac.errors import Cancelled
from tests.session.lab import GREEDY, Lab, disturbed, generate, persist, prompt, take

if TYPE_CHECKING:
    from tests.conftest import TinyModel


def counted(lab: Lab, path: Path) -> _core.Experts:
    """Return the experts of a model after a context has shown its layers. Skip if no device holds them."""
    lab.context(path)
    experts = lab.experts(path)
    if experts is None or experts.n_layer == 0:
        pytest.skip("no device holds the model's experts")
    return experts


def check(step: _core.Step, experts: _core.Experts) -> None:
    """Assert that every verified token wants n_used experts of every layer."""
    layers = experts.layers
    assert step.demand.shape == (experts.n_layer, experts.n_expert)
    assert step.demand.sum(axis=1).tolist() == [step.n_verified * layer.n_used for layer in layers]
    assert step.demand.min() >= 0
    assert step.demand.max() <= step.n_verified


@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2", "gpt-oss"])
@pytest.mark.parametrize("draft_length", [0, 1, 8])
def test_demand_is_that_of_the_verified_tokens(
    lab: Lab, tiny_model: TinyModel, other: Path, family: str, draft_length: int
) -> None:
    path = tiny_model(family)
    experts = counted(lab, path)
    session = lab.session(lab.context(path), lab.context(other), experts, draft_max=8, temp=1.0, seed=2)
    session.set_draft_length(draft_length)
    session.prefill(prompt(100))
    for _ in range(10):
        check(session.step(), experts)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_routes_are_the_demand_by_token(lab: Lab, moe: Path, other: Path, share: float) -> None:
    experts = counted(lab, moe)
    experts.attach_slots(round(share * experts.n_layer * experts.n_expert))
    experts.submit(
        np.ones((experts.n_layer, experts.n_expert), np.int32), np.zeros(experts.n_layer, np.int32)
    )
    assert experts.settle(10)
    session = lab.session(lab.context(moe), lab.context(other), experts, draft_max=4, temp=1.0, seed=2)
    session.prefill(prompt(40))
    for draft_length in (4, 1, 0, 3):
        session.set_draft_length(draft_length)
        step, routes = session.step(), experts.routes()
        assert routes.shape == (experts.n_layer, step.n_verified, experts.layers[0].n_used)
        sums = [np.bincount(layer[layer >= 0], minlength=experts.n_expert).tolist() for layer in routes]
        assert sums == step.demand.tolist()
        tokens = np.sort(routes, axis=2)
        assert (tokens[..., 1:] > tokens[..., :-1]).all(), "a token wants no expert of a layer twice"


def test_neither_prompts_nor_drafts_count(lab: Lab, moe: Path) -> None:
    """The draft model may be the target itself, with the same experts."""
    experts = counted(lab, moe)
    experts.take_demand()
    session = lab.session(lab.context(moe), lab.context(moe), experts, draft_max=4, **GREEDY)
    session.prefill(prompt(40))
    demand, n_steps = experts.take_demand()
    assert (demand.sum(), n_steps) == (0, 0)
    for _ in range(4):
        step = session.step()
        assert step.n_accepted == 4
        check(step, experts)


def test_a_draft_with_experts_does_not_mix(lab: Lab, moe: Path, tiny_model: TinyModel) -> None:
    draft = tiny_model("qwen3moe", n_layer=2, n_expert=7, seed=5)
    experts, draft_experts = counted(lab, moe), counted(lab, draft)
    draft_experts.set_counting(False)
    draft_experts.take_demand()
    session = lab.session(lab.context(moe), lab.context(draft), experts, draft_max=4, **GREEDY)
    session.prefill(prompt(40))
    for _ in range(6):
        check(session.step(), experts)
    assert draft_experts.take_demand()[0].sum() == 0


def test_the_view_is_the_sessions_buffer(lab: Lab, moe: Path) -> None:
    experts = counted(lab, moe)
    session = lab.session(lab.context(moe), None, experts, temp=1.0, seed=1)
    session.prefill(prompt(40))
    views = []
    session.on("verify_end", lambda step: views.append(step.demand))
    steps = [session.step() for _ in range(3)]
    assert all(np.shares_memory(views[0], view) for view in [*views, *(step.demand for step in steps)])
    assert views[0].tolist() == views[-1].tolist(), "the next step overwrites it"
    assert not views[0].flags.writeable
    kept, content = steps[-1].demand, steps[-1].demand.tolist()
    session.close()
    assert kept.tolist() == content, "it outlives the session"


def test_a_stopped_verification_leaves_no_demand_behind(lab: Lab, moe: Path) -> None:
    experts = counted(lab, moe)
    session = lab.session(lab.context(moe), lab.context(moe), experts, draft_max=4, **GREEDY)
    session.prefill(prompt(40))
    session.on("draft_end", lambda event: session.cancel())
    for _ in range(3):
        with pytest.raises(Cancelled):
            session.step()
    session.on("draft_end", None)
    check(session.step(), experts)


def test_without_experts_there_is_none(lab: Lab, target: Path) -> None:
    session = lab.plain(target, **GREEDY)
    session.prefill(prompt(10))
    assert session.step().demand.shape == (0, 0)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_residency_does_not_change_the_text(lab: Lab, moe: Path, other: Path, share: float) -> None:
    experts = counted(lab, moe)
    expected = generate(
        lab.session(lab.context(moe), lab.context(other), draft_max=4, **GREEDY), prompt(40), 40
    )
    shape = (experts.n_layer, experts.n_expert)
    experts.attach_slots(round(share * shape[0] * shape[1]))
    priority = np.random.default_rng(0).integers(0, 100, shape).astype(np.int32)
    experts.submit(priority, np.zeros(shape[0], np.int32))
    assert experts.settle(10)
    session = lab.session(lab.context(moe), lab.context(other), experts, draft_max=4, **GREEDY)
    session.prefill(prompt(40))
    tokens = take(session, 20)
    # The text stays the same while slots move.
    experts.submit(priority[:, ::-1].copy(), np.zeros(shape[0], np.int32))
    assert tokens + take(session, 20) == expected


def test_cancelling_while_slots_move_changes_nothing(lab: Lab, moe: Path, other: Path) -> None:
    """Graphs stop half-way on the device, again and again, and the plan changes at every step."""
    experts = counted(lab, moe)
    expected = generate(
        lab.session(lab.context(moe), lab.context(other), draft_max=4, **GREEDY), prompt(150), 60
    )
    shape = (experts.n_layer, experts.n_expert)
    experts.attach_slots(shape[0] * shape[1] // 2)
    rng = np.random.default_rng(0)

    def replan(_step: _core.Step) -> None:
        experts.submit(rng.integers(0, 100, shape).astype(np.int32), np.zeros(shape[0], np.int32))

    session = lab.session(lab.context(moe), lab.context(other), experts, draft_max=4, **GREEDY)
    session.on("verify_end", replan)
    with disturbed(session):
        tokens, n_cancelled = persist(session, prompt(150), 60)
    assert n_cancelled > 0
    assert tokens == expected
    session.reset()  # a late cancel() may still be pending
    session.prefill(prompt(20))
    check(session.step(), experts)
