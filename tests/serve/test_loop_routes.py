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
from tests.engine.test_sp_moe import LENGTH, Predictions, config
from tools.self_draft import quantize

N = 60
Drafts = list[tuple[list[int], Any]]
"""The tokens and the routes of drafts."""


@pytest.fixture(scope="module")
def draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantize(TARGET, tmp_path_factory.mktemp("draft") / "target-Q4_0.gguf")


def settings(draft: Path | None, scheduler: str | Scheduler, **options: Any) -> EngineConfig:
    return config(
        TARGET, draft, scheduler, **{"parallel": 1, "deterministic": False, "state": "off", **options}
    )


def generated(**options: Any) -> str:
    """Return the text of `Engine.generate`."""
    with Engine(settings(options.pop("draft", None), options.pop("scheduler"), **options)) as engine:
        return "".join(engine.generate(PROMPT, N))


def asked(engine: Engine, prompt: str = PROMPT) -> str:
    """Return a client's answer."""
    request = {"prompt": prompt, "n_predict": N, "ignore_eos": True}
    made = engine.loop.begin("completion", json.dumps(request).encode())
    made.run()
    assert made.status == 200, made.body
    text: str = json.loads(made.body)["content"]
    made.close()
    return text


def served(n: int = 1, **options: Any) -> str:
    """Return the answer of an engine that serves, the same each time that it is asked."""
    configured = settings(options.pop("draft", None), options.pop("scheduler"), **options)
    with Engine(configured, serves=LoopOptions("demo")) as engine:
        answers = [asked(engine) for _ in range(n)]
    assert all(each == answers[0] for each in answers)
    return answers[0]


@pytest.mark.parametrize("scheduler", ["none", "moe-speq", "sp-moe", "moe-spac"])
def test_the_text_is_that_without_drafts(scheduler: str, draft: Path) -> None:
    expected = generated(scheduler="none", draft_length=0)
    assert served(3, draft=draft, scheduler=scheduler) == expected


@pytest.mark.parametrize("draft_type", ["draft-simple", "self"])
def test_a_clients_drafts_and_their_routes_are_those_of_generate(
    draft_type: str, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Drafts = []
    handled = Events._draft_end

    def spy(self: Events, event: _core.DraftEnd) -> None:
        known.append((event.tokens.tolist(), None if event.routes is None else event.routes.tolist()))
        handled(self, event)

    monkeypatch.setattr(Events, "_draft_end", spy)
    options = {"draft": draft} if draft_type == "draft-simple" else {"draft_type": "self"}
    served(scheduler="moe-speq", **options)
    of_client, known = known, []
    generated(scheduler="moe-speq", **options)
    assert len(known) > 8
    assert of_client == known
    assert max(len(tokens) for tokens, _ in known) == LENGTH
    assert all(np.shape(routes)[1] >= len(tokens) for tokens, routes in known if tokens)


def test_the_targets_routers_are_asked_about_the_drafts_states(draft: Path) -> None:
    predictions = Predictions()
    served(draft=draft, scheduler=predictions)
    assert len(predictions.real) == len(predictions.predicted) > 8
    assert predictions.fidelity.same.min() > 0.8


# Several places


PROMPTS = (
    "def fibonacci(n):\n", "class Stack:\n    def push(self, item):\n", "import os\nimport sys\n",
    "for i in range(9):\n    print(i)\n", "# A queue\nclass Queue:\n", "while True:\n    pass\n",
    "x = [1, 2, 3]\n", "def main():\n    parser = ",
)  # fmt: skip


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
            assert view.draft_routes is not None
            assert (view.draft_routes >= 0).all()
            if event == Event.DRAFT_END:
                self.drafts.append((view.n_drafted, view.draft_routes.copy()))
            else:
                assert view.draft_routes.shape[1] == view.n_drafted
        return None


def rows(drafts: Sequence[tuple[int, Any]]) -> set[bytes]:
    """Return the routes of each token in drafts."""
    return {token.tobytes() for _, routes in drafts for token in np.moveaxis(routes, 1, 0)}


@pytest.mark.parametrize("p_min", [0.0, 0.5])
@pytest.mark.parametrize("source", ["draft", "self", "target"])
def test_each_place_has_its_text_and_shows_its_routes(
    source: str, p_min: float, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The routes of a client's drafts are those that its drafts have alone."""
    drafts: list[tuple[int, Any]] = []
    handled = Events._draft_end

    def spy(self: Events, event: _core.DraftEnd) -> None:
        if event.routes is not None:
            drafts.append((len(event.tokens), event.routes))
        handled(self, event)

    monkeypatch.setattr(Events, "_draft_end", spy)
    options: dict[str, Any] = {"draft_p_min": p_min, "flash_attn": "off"}
    if source == "self":
        options["draft_type"] = "self"
    chosen = draft if source != "self" else None
    scheduler = Seen(drafts) if source == "target" else "moe-speq"
    of_client, texts = [], []
    with Engine(settings(chosen, scheduler, **options), serves=LoopOptions("demo")) as engine:
        for prompt in PROMPTS:
            drafts.clear()
            texts.append(asked(engine, prompt))
            of_client.append(rows(drafts))
    drafts.clear()
    with Engine(settings(chosen, scheduler, parallel=4, **options), serves=LoopOptions("demo")) as engine:
        assert engine.n_sequences == 4
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(lambda prompt: asked(engine, prompt), PROMPTS)) == texts
    together = rows(drafts)
    for i, known in enumerate(of_client):
        others = set[bytes]().union(*of_client[:i], *of_client[i + 1 :])
        assert len(known & others) < 0.1 * len(known)
        assert len(known & together) > 0.75 * len(known) > 20
    more = [routes.shape[1] - n for n, routes in drafts]  # tokens at which drafts ended
    most = max(routes.shape[1] for _, routes in drafts)
    assert (most, set(more)) == (4 * LENGTH, {0}) if p_min == 0 else most > 2 * LENGTH and 2 < max(more) < 5


@pytest.mark.parametrize("scheduler", ["sp-moe", "moe-speq", "moe-spac"])
def test_several_places_have_the_texts_of_one(scheduler: str, draft: Path) -> None:
    options: dict[str, Any] = {"draft": draft, "flash_attn": "off"}
    with Engine(settings(None, "none", draft_length=0, flash_attn="off")) as engine:
        expected = ["".join(engine.generate(prompt, N)) for prompt in PROMPTS]
    assert settings(scheduler=scheduler, parallel=-1, **options).n_parallel == 4
    several = settings(scheduler=scheduler, parallel=4, **options)
    with Engine(several, serves=LoopOptions("demo")) as engine, ThreadPoolExecutor(len(PROMPTS)) as pool:
        assert list(pool.map(lambda prompt: asked(engine, prompt), PROMPTS)) == expected


def test_deterministic_answers_have_one_place(draft: Path) -> None:
    with pytest.raises(InputError, match="--deterministic: one generation at a time"):
        Engine(settings(draft, "sp-moe", parallel=2, deterministic=True), serves=LoopOptions("demo"))


@pytest.mark.parametrize("scheduler", ["logistic", "moe-speq"])
def test_deterministic_runs_repeat_their_hits(scheduler: str, draft: Path) -> None:
    found = []
    for _ in range(2):
        with Engine(settings(draft, scheduler, deterministic=True), serves=LoopOptions("demo")) as engine:
            answer = asked(engine)
            assert engine.experts is not None
            found.append((answer, engine.experts.stats["activations_hit"]))
    assert found[0] == found[1]
    assert found[0][1] > 0
