"""llama.cpp's loop with one place: what reads one draft's routes, and drafts with the target itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac import _core
from spac.config import EngineConfig
from spac.demo import PROMPT, TARGET
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions
from spac.engine.session_events import Events
from spac.errors import InputError
from spac.scheduler import Scheduler
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


def alone(begun: Sequence[int] = (), **options: Any) -> str:
    """Return the session's answer behind its first tokens `begun`."""
    with Engine(settings(options.pop("draft", None), options.pop("scheduler"), **options)) as engine:
        prompt = np.array([*engine.tokenize(PROMPT), *begun], np.int32)
        return "".join(engine.generate(prompt, N - len(begun)))


def asked(engine: Engine) -> tuple[str, list[int]]:
    """Return the loop's answer and its tokens."""
    assert engine.loop is not None
    request = {"prompt": PROMPT, "n_predict": N, "ignore_eos": True, "return_tokens": True}
    made = engine.loop.begin("completion", json.dumps(request).encode())
    made.run()
    assert made.status == 200, made.body
    got = json.loads(made.body)
    made.close()
    return got["content"], got["tokens"]


def served(n: int = 1, **options: Any) -> tuple[str, list[int]]:
    """Return the loop's answer and its tokens, the same each time that it is asked."""
    configured = settings(options.pop("draft", None), options.pop("scheduler"), **options)
    with Engine(configured, serves=LoopOptions("demo")) as engine:
        answers = [asked(engine) for _ in range(n)]
    assert all(each == answers[0] for each in answers)
    return answers[0]


@pytest.mark.parametrize("scheduler", ["none", "moe-speq", "sp-moe", "moe-spac"])
def test_the_text_is_that_of_the_session(scheduler: str, draft: Path) -> None:
    assert served(3, draft=draft, scheduler=scheduler)[0] == alone(
        draft=draft, scheduler="none", draft_length=0
    )


@pytest.mark.parametrize("draft_type", ["draft-simple", "self"])
def test_drafts_and_their_routes_are_those_of_the_session(
    draft_type: str, draft: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known: Drafts = []
    handled = Events._draft_end

    def spy(self: Events, event: _core.DraftEnd) -> None:
        known.append((event.tokens.tolist(), None if event.routes is None else event.routes.tolist()))
        handled(self, event)

    monkeypatch.setattr(Events, "_draft_end", spy)
    options = {"draft": draft} if draft_type == "draft-simple" else {"draft_type": "self"}
    _, tokens = served(scheduler="moe-speq", **options)
    of_loop, known = known, []
    alone(tokens[:1], scheduler="moe-speq", **options)  # the loop's first token comes with the prompt
    assert len(of_loop) > 8
    assert of_loop[:-2] == known[: len(of_loop) - 2]  # llama.cpp's last draft ends with the text
    known = of_loop
    assert max(len(tokens) for tokens, _ in known) == LENGTH
    assert all(np.shape(routes)[1] >= len(tokens) for tokens, routes in known if tokens)


def test_the_targets_routers_are_asked_about_the_drafts_states(draft: Path) -> None:
    predictions = Predictions()
    served(draft=draft, scheduler=predictions)
    assert len(predictions.real) == len(predictions.predicted) > 8
    assert predictions.fidelity.same.min() > 0.8


@pytest.mark.parametrize("scheduler", ["sp-moe", "moe-speq"])
def test_they_have_one_place(scheduler: str, draft: Path) -> None:
    serves = LoopOptions("demo")
    with pytest.raises(InputError, match="unknown with several generations at once"):
        Engine(settings(draft, scheduler, parallel=2), serves=serves)
    with Engine(settings(draft, scheduler, parallel=-1), serves=serves) as engine:
        assert engine.n_sequences == 1


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
