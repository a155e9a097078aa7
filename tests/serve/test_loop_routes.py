"""llama.cpp's loop with what reads the drafts' routes, and with a target that drafts for itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.config import EngineConfig
from spac.demo import PROMPT, TARGET
from spac.engine import Engine
from spac.engine.events import Events
from spac.engine.server_loop import LoopOptions
from spac.errors import InputError
from spac.scheduler import Event, Plan, Scheduler, View
from tests import exact
from tests.engine.test_sp_moe import LENGTH, Predictions, config
from tools.self_draft import quantize

N = 40
MANY = 60
Drafts = list[tuple[list[int], Any]]
"""The tokens and the routes of drafts."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory):
    return quantize(TARGET, tmp_path_factory.mktemp("draft") / "target-Q4_0.gguf")


def settings(draft: Path | None, scheduler: str | Scheduler, **options: Any) -> EngineConfig:
    usual = {"parallel": 1, "deterministic": False, "state": "off", **exact.CACHE}
    return config(exact.target(), draft, scheduler, **{**usual, **options})


def generated(prompts: Sequence[str] = (PROMPT,), n_tokens: int = N, **options: Any) -> list[str]:
    """Return the texts of `Engine.generate`."""
    with Engine(settings(options.pop("draft", None), options.pop("scheduler"), **options)) as engine:
        return ["".join(engine.generate(prompt, n_tokens)) for prompt in prompts]


def asked(engine: Engine, prompt: str = PROMPT, n_tokens: int = N) -> str:
    """Return a client's answer."""
    request = {"prompt": prompt, "n_predict": n_tokens, "ignore_eos": True}
    made = engine.loop.begin("completion", json.dumps(request).encode())
    made.run()
    assert made.status == 200, made.body
    text: str = json.loads(made.body)["content"]
    made.close()
    return text


def served(n: int = 1, n_tokens: int = N, **options: Any) -> list[str]:
    """Return the answers of an engine that serves, for `n` times the same question."""
    configured = settings(options.pop("draft", None), options.pop("scheduler"), **options)
    with Engine(configured, serves=LoopOptions("demo")) as engine:
        return [asked(engine, n_tokens=n_tokens) for _ in range(n)]


@pytest.fixture
def drafts(monkeypatch):
    """Return a list, to which each draft's tokens and routes are appended."""
    known: Drafts = []
    handled = Events._draft_end

    def spy(self: Events, event: _core.DraftEnd) -> None:
        known.append((event.tokens.tolist(), event.routes))
        handled(self, event)

    monkeypatch.setattr(Events, "_draft_end", spy)
    return known


@pytest.mark.parametrize("scheduler", ["none", "moe-speq", "sp-moe", "moe-spac"])
def test_the_text_is_that_without_drafts(scheduler, draft):
    assert served(3, draft=draft, scheduler=scheduler) == generated(scheduler="none", draft_length=0) * 3


@pytest.mark.parametrize("draft_type", ["draft-simple", "self"])
def test_a_clients_drafts_and_their_routes_are_those_of_generate(draft_type, draft, drafts):
    options = {"draft": draft} if draft_type == "draft-simple" else {"draft_type": "self"}
    served(n_tokens=MANY, scheduler="moe-speq", **options)
    of_client = list(drafts)
    drafts.clear()
    generated(n_tokens=MANY, scheduler="moe-speq", **options)
    assert len(drafts) > 8
    for (ours, ours_routes), (theirs, theirs_routes) in zip(of_client, drafts, strict=True):
        assert ours == theirs
        np.testing.assert_equal(ours_routes, theirs_routes)
    assert max(len(tokens) for tokens, _ in drafts) == LENGTH
    assert all(np.shape(routes)[1] >= len(tokens) for tokens, routes in drafts if tokens)


def test_the_targets_routers_are_asked_about_the_drafts_states(draft):
    predictions = Predictions()
    served(n_tokens=MANY, draft=draft, scheduler=predictions)
    assert len(predictions.real) == len(predictions.predicted) > 8
    assert predictions.fidelity.same.min() > 0.8


# Several places


PROMPTS = (*exact.PROMPTS, "There was once a green parrot who was afraid of the dark in the city.")


class Seen(Scheduler):
    """Scheduler that keeps what the target's routers choose for the states of each step's drafts."""

    name = "seen"
    events = frozenset({Event.START, Event.DRAFT_TOKEN, Event.DRAFT_END, Event.VERIFY_END})
    routers = "target"

    def __init__(self, drafts: list[tuple[int, Any]]) -> None:
        self.drafts = drafts

    def on(self, event: Event, view: View) -> Plan | None:
        """Keep the routes of a draft that has ended."""
        if event == Event.START:
            self.critical = np.array([layer.n_used for layer in view.layers], np.int32)
            return Plan.nothing(view.n_layer, view.n_expert)
        if event != Event.VERIFY_END:
            assert (view.draft_routes >= 0).all()
            if event == Event.DRAFT_END:
                self.drafts.append((view.n_drafted * [0], view.draft_routes.copy()))
            else:
                assert view.draft_routes.shape[1] == view.n_drafted
        return None


def rows(drafts: Drafts) -> set[bytes]:
    """Return the routes of each token in drafts."""
    return {token.tobytes() for _, routes in drafts for token in np.moveaxis(routes, 1, 0)}


@pytest.mark.parametrize(
    ("source", "p_min"), [("draft", 0.0), ("draft", 0.5), ("self", 0.5), ("target", 0.0), ("target", 0.5)]
)
def test_each_place_has_its_text_and_shows_its_routes(source, p_min, draft, drafts):
    """The routes of a client's drafts are those that its drafts have alone."""
    options: dict[str, Any] = {"draft_p_min": p_min}
    if source == "self":
        options["draft_type"] = "self"
    shown: Drafts = [] if source == "target" else drafts
    chosen = draft if source != "self" else None
    scheduler = Seen(shown) if source == "target" else "moe-speq"
    of_client, texts = [], []
    with Engine(settings(chosen, scheduler, **options), serves=LoopOptions("demo")) as engine:
        for prompt in PROMPTS:
            shown.clear()
            texts.append(asked(engine, prompt, MANY))
            of_client.append(rows(told(shown)))
    shown.clear()
    with Engine(settings(chosen, scheduler, parallel=4, **options), serves=LoopOptions("demo")) as engine:
        assert engine.n_sequences == 4
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(lambda prompt: asked(engine, prompt, MANY), PROMPTS)) == texts
    shown = told(shown)
    together = rows(shown)
    for i, known in enumerate(of_client):
        others = set[bytes]().union(*of_client[:i], *of_client[i + 1 :])
        assert len(known & others) < 0.1 * len(known)
        assert len(known & together) > 0.75 * len(known) > 20
    more = [routes.shape[1] - len(tokens) for tokens, routes in shown]  # tokens at which drafts ended
    most = max(routes.shape[1] for _, routes in shown)
    assert (most, set(more)) == (4 * LENGTH, {0}) if p_min == 0 else most > 2 * LENGTH and 2 < max(more) < 5


def told(drafts: Drafts) -> Drafts:
    """Return the drafts that have routes."""
    return [each for each in drafts if each[1] is not None]


@pytest.mark.parametrize("scheduler", ["sp-moe", "moe-speq", "moe-spac"])
def test_several_places_have_the_texts_of_one(scheduler, draft):
    expected = generated(PROMPTS, scheduler="none", draft_length=0)
    assert settings(draft, scheduler, parallel=-1).n_parallel == 4
    several = settings(draft, scheduler, parallel=4)
    with Engine(several, serves=LoopOptions("demo")) as engine, ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: asked(engine, prompt), PROMPTS)) == expected


def test_deterministic_answers_have_one_place(draft):
    with pytest.raises(InputError, match="--deterministic: one generation at a time"):
        Engine(settings(draft, "sp-moe", parallel=2, deterministic=True), serves=LoopOptions("demo"))


@pytest.mark.parametrize("scheduler", ["logistic", "moe-speq"])
def test_deterministic_runs_repeat_their_hits(scheduler, draft):
    found = []
    for _ in range(2):
        with Engine(settings(draft, scheduler, deterministic=True), serves=LoopOptions("demo")) as engine:
            found.append((asked(engine), engine.experts.stats["activations_hit"]))
    assert found[0] == found[1]
    assert found[0][1] > 0
