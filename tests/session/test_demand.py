"""The demand and the events of a step are those of the target's verification, and nothing else."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from spac import _core
from spac.config import SamplingConfig
from tests.session.lab import Lab, generate, prompt, submit

if TYPE_CHECKING:
    from tests.conftest import TinyModel

HOT = SamplingConfig(temp=1.0, seed=2, ignore_eos=True)


def check(step: _core.Step, experts: _core.Experts) -> None:
    """Assert that every verified token wants n_used experts of every layer."""
    assert step.demand.shape == (experts.n_layer, experts.n_expert)
    assert step.demand.sum(axis=1).tolist() == [step.n_verified * layer.n_used for layer in experts.layers]
    assert step.demand.min() >= 0
    assert step.demand.max() <= step.n_verified
    assert not step.demand.flags.writeable


@pytest.mark.parametrize("family", ["qwen3moe", "deepseek2", "gpt-oss"])
@pytest.mark.parametrize("draft_length", [0, 1, 8])
def test_demand_is_that_of_the_verified_tokens(
    lab: Lab, tiny_model: TinyModel, family: str, draft_length: int
) -> None:
    """The draft model has experts of its own."""
    draft = tiny_model("qwen3moe", n_layer=2, n_expert=7, seed=5)
    engine = lab.engine(tiny_model(family), draft=draft, draft_length=draft_length, sampling=HOT)
    experts, drafted = engine.experts, []
    assert experts is not None

    def see(step: _core.Step) -> None:
        check(step, experts)
        drafted.append(step.n_drafted)

    engine.loop.on("verify_end", see)
    generate(engine, prompt(100), 1)
    demand, n_steps = experts.take_demand()
    assert (demand.sum(), n_steps, drafted) == (0, 0, []), "a prompt does not count"
    generate(engine, prompt(100), 12)
    assert max(drafted) == draft_length


@pytest.mark.parametrize("share", [0, 2, 5])
def test_routes_are_the_demand_by_token(lab: Lab, moe: Path, other: Path, share: int) -> None:
    engine = lab.engine(moe, draft=other, draft_max=4, sampling=HOT)
    experts, lengths = engine.experts, []
    assert experts is not None
    submit(experts, share)

    def see(step: _core.Step) -> None:
        routes = experts.routes()
        lengths.append(step.n_drafted)
        assert routes.shape == (experts.n_layer, step.n_verified, experts.layers[0].n_used)
        sums = [np.bincount(layer[layer >= 0], minlength=experts.n_expert).tolist() for layer in routes]
        assert sums == step.demand.tolist()
        tokens = np.sort(routes, axis=2)
        assert (tokens[..., 1:] > tokens[..., :-1]).all(), "a token wants no expert of a layer twice"

    engine.loop.on("verify_end", see)
    for length in (4, 1, 0, 3):
        engine.fix_draft_length(length)
        generate(engine, prompt(40), 9)
    assert {0, 1, 3, 4} <= set(lengths)


def test_without_experts_there_is_none(lab: Lab, target: Path) -> None:
    engine, seen = lab.engine(target), []
    engine.loop.on("verify_end", lambda step: seen.append((step.demand.shape, step.layer_costs.shape)))
    generate(engine, prompt(10), 3)
    assert set(seen) == {((0, 0), (0,))}


@pytest.mark.parametrize("n_resident", [0, 2, 5])
def test_every_layer_comes_once_with_its_demand(lab: Lab, moe: Path, other: Path, n_resident: int) -> None:
    engine = lab.engine(moe, draft=other, draft_length=4)
    experts, seen, steps = engine.experts, list[tuple[int, list[int]]](), 0
    assert experts is not None
    submit(experts, n_resident)

    def see(step: _core.Step) -> None:
        nonlocal steps
        assert seen == list(enumerate(step.demand.tolist()))
        seen.clear()
        steps += 1

    engine.loop.on("verify_layer", lambda event: seen.append((event.layer, event.demand.tolist())))
    engine.loop.on("verify_end", see)
    generate(engine, prompt(30), 8)
    assert steps >= 2
    engine.loop.on("verify_layer", None)
    engine.loop.on("verify_end", None)
    generate(engine, prompt(30), 8)
    assert seen == []


def test_events_come_in_order_and_say_the_same(lab: Lab, target: Path, other: Path) -> None:
    engine, seen, steps = lab.engine(target, draft=other, draft_length=5, sampling=HOT), list[Any](), 0

    def drafted(event: _core.DraftToken) -> None:
        seen.append(event)
        time.sleep(0.01)

    def see(step: _core.Step) -> None:
        nonlocal steps
        *tokens, draft = seen
        assert isinstance(draft, _core.DraftEnd)
        assert [event.index for event in tokens] == list(range(step.n_drafted))
        assert [event.token for event in tokens] == draft.tokens.tolist()
        assert len(draft.tokens) == step.n_drafted
        assert draft.tokens[: step.n_accepted].tolist() == step.tokens[:-1].tolist()
        assert step.verify_ns > 0
        assert step.draft_ns >= draft.draft_ns >= 10_000_000 * step.n_drafted, "the draft goes on"
        seen.clear()
        steps += 1

    engine.loop.on("draft_token", drafted)
    engine.loop.on("draft_end", seen.append)
    engine.loop.on("verify_end", see)
    generate(engine, prompt(30), 10)
    assert steps > 2
