"""llama.cpp's loop with places for several clients, on models that spac's own loop runs for one at a time.

Tokens equal those of an unpatched library, which evaluates each prompt alone and each token in a batch of its
own.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.server_loop import LoopOptions
from tests.conftest import TinyModel
from tests.engine.replay import Recording, replay_all
from tools.compare import Settings
from tools.models import FAMILIES, Shape, write_model
from tools.models.loader_families import LoaderFamily

GREEDY = SamplingConfig(temp=0.0, top_k=0, repeat_penalty=1.0)
SETTINGS = Settings(n_ctx=1024, n_batch=512, n_ubatch=512, n_threads=1, flash_attn=False)
OPTIONS: dict[str, Any] = {
    "ctx": 1024, "parallel": 4, "ubatch": 64, "state": "off", "threads": 1, "threads_batch": 1,
    "flash_attn": "off", "device": "simulated", "slots": "25%", "sampling": GREEDY,
}  # fmt: skip
PROMPTS = (
    "def fibonacci(n):\n", "class Stack:\n    def push(self, item):\n" * 4, "import os\n" * 9, "x = 1\n",
    "# A queue\nclass Queue:\n", "for i in range(9):\n    print(i)\n" * 2,
)  # fmt: skip
N = 24
STATES = ("qwen3next", "qwen35moe", "kimi-linear", "granitehybrid", "nemotron_h_moe", "lfm2moe")
DRAFTS: dict[str, dict[str, Any]] = {
    "none": {}, "ngram": {"draft_type": "ngram-simple", "draft_length": 3},
}  # fmt: skip
Tokens = list[int]


def answer(engine: Engine, prompt: Any, n: int = N, **more: Any) -> Tokens:
    """Return the tokens that llama.cpp's server answers with."""
    assert engine.loop is not None
    asked = {"prompt": prompt, "n_predict": n, "return_tokens": True, "ignore_eos": True, **more}
    made = engine.loop.begin("completion", json.dumps(asked).encode())
    made.run()
    assert made.status == 200, made.body
    got: Tokens = json.loads(made.body)["tokens"]
    made.close()
    return got


def at_once(engine: Engine, prompts: list[Tokens]) -> list[Tokens]:
    """Return the answers to prompts that clients of their own send together."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda each: answer(engine, each), prompts))


@pytest.fixture(scope="module")
def alone(reference_lib: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Tokens]]:
    """Return a function of what the unpatched library generates after each prompt."""
    known: dict[str, Tokens] = {}

    def of(path: Path, prompts: list[Tokens]) -> list[Tokens]:
        new = [each for each in prompts if f"{path} {each}" not in known]
        jobs = [Recording(str(path), each, [[]] * N) for each in new]
        made = replay_all(jobs, SETTINGS, reference_lib, tmp_path_factory.mktemp("replay"))
        known.update({f"{path} {each}": of["tokens"] for each, of in zip(new, made, strict=True)})
        return [known[f"{path} {prompt}"] for prompt in prompts]

    return of


def compare(target: Path, alone: Callable[..., list[Tokens]], **options: Any) -> Engine:
    """Ask the loop for several answers at once, for continued ones, and compare each with the one alone."""
    with Engine(EngineConfig(target=target, **{**OPTIONS, **options}), serves=LoopOptions("x")) as engine:
        assert engine.n_sequences == 4
        prompts = [engine.tokenize(each).tolist() for each in PROMPTS]
        expected = alone(target, prompts)
        assert at_once(engine, prompts) == expected
        longer = [[*each, *made[:7]] for each, made in zip(prompts, expected, strict=True)]
        assert at_once(engine, longer) == alone(target, longer)
        assert at_once(engine, prompts) == expected, "a conversation goes back"
        return engine


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("family", STATES)
def test_states_of_several_clients(
    family: str, draft: str, tiny_model: TinyModel, alone: Callable[..., list[Tokens]]
) -> None:
    compare(tiny_model(family), alone, **DRAFTS[draft])


def test_windows_of_several_clients(tiny_model: TinyModel, alone: Callable[..., list[Tokens]]) -> None:
    compare(tiny_model("gpt-oss"), alone)


def test_mtp_of_several_clients(tiny_model: TinyModel, alone: Callable[..., list[Tokens]]) -> None:
    path = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    compare(path, alone, draft_type="draft-mtp", draft_length=3)


def test_eagle3_of_several_clients(
    tiny_model: TinyModel,
    alone: Callable[..., list[Tokens]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {"target_layers": [0, 1, 2], "target_hidden_size": 64}
    family = LoaderFamily("eagle3", lambda _: keys, default=Shape(n_layer=1))
    monkeypatch.setitem(FAMILIES, "eagle3", family)  # type: ignore[arg-type]
    draft = write_model(tmp_path / "draft.gguf", "eagle3")
    compare(tiny_model("qwen3moe"), alone, draft=draft, draft_type="draft-eagle3", draft_length=3)
