"""A prompt whose logits are no numbers leaves nothing behind: later answers are those of a new engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from spac.engine import Engine
from spac.engine.server_loop import LoopOptions
from spac.errors import SpacError
from tests.conftest import TinyModel
from tests.engine.conftest import config
from tests.session.recurrent import write_lfm2

BAD = 9  # the token whose embedding is no number
OVERFLOWS = [5, 6, 7, BAD, 8]
ERROR = "the model's logits are no finite numbers"
PROMPTS = [[5, 6, 7, 8, 3], [5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8, 2, 3]]


def dense(make: TinyModel, folder: Path) -> Path:
    return Path(shutil.copy(make("qwen3moe"), folder / "dense.gguf"))


def delta_rule(make: TinyModel, folder: Path) -> Path:
    return Path(shutil.copy(make("qwen3next"), folder / "delta.gguf"))


def a_state(_make: TinyModel, folder: Path) -> Path:
    return write_lfm2(folder / "lfm2.gguf")


def overflowing(path: Path) -> Path:
    reader = gguf.GGUFReader(path, "r+")
    embedding = next(each for each in reader.tensors if each.name == "token_embd.weight")
    embedding.data[BAD] = np.nan
    reader.data.flush()
    return path


def answers(engine: Engine, prompts: list[list[int]]) -> list[list[int] | str]:
    made: list[list[int] | str] = []
    for prompt in prompts:
        generation = engine.generate(prompt, 6)
        try:
            list(generation)
            made.append(generation.tokens)
        except SpacError as error:
            made.append(str(error))
    return made


@pytest.mark.parametrize(
    ("write", "options"),
    [(dense, {"flash_attn": "off"}), (delta_rule, {}), (a_state, {"ctx_checkpoints": 0})],
)
def test_later_answers_are_right(tiny_model, tmp_path, write, options):
    path = overflowing(write(tiny_model, tmp_path))
    opened = config(path, device="cpu", ctx=64, cache_ram=0, **options)
    fresh: list[list[int] | str] = []
    for prompt in PROMPTS:
        with Engine(opened) as engine:
            fresh += answers(engine, [prompt])
    for prompt, answer in zip(PROMPTS, fresh, strict=True):
        with Engine(opened) as engine:
            assert answers(engine, [OVERFLOWS]) == [ERROR]
            assert answers(engine, [prompt]) == [answer]


@pytest.mark.parametrize("write", [dense, a_state])
def test_the_loop_of_llama_cpp(tiny_model, tmp_path, write):
    """An answer that overflows is an error, and what slots hold of other prompts stays right."""
    path = overflowing(write(tiny_model, tmp_path))
    opened = config(
        path, device="cpu", ctx=256, parallel=4, flash_attn="off", cache_ram=0, deterministic=False
    )
    fresh = []
    for prompt in PROMPTS:
        with Engine(opened, serves=LoopOptions("demo")) as engine:
            fresh.append(loop_answer(engine, 0, prompt))
    with Engine(opened, serves=LoopOptions("demo")) as engine:
        for prompt in PROMPTS:
            loop_answer(engine, 1, prompt)
            error = loop_answer(engine, 0, OVERFLOWS)["error"]
            assert error["message"] == ERROR
            assert loop_answer(engine, 1, prompt) == loop_answer(engine, 0, prompt) == fresh[0]
            fresh.append(fresh.pop(0))


def loop_answer(engine: Engine, slot: int, prompt: list[int]) -> Any:
    body = {"prompt": prompt, "n_predict": 6, "id_slot": slot, "return_tokens": True}
    answer = engine.loop.begin("completion", json.dumps(body).encode())
    answer.run()
    said = json.loads(answer.body)
    answer.close()
    return said.get("tokens", said)
