"""A real chat model whose feed-forward blocks were divided into experts (`python -m tools.split_dense`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.scoring import Scores, score
from tests.exec.conftest import EXEC, outcome
from tools.split_dense.fetch import fetch, split_model
from tools.split_dense.text import HELD_OUT, docstrings

pytestmark = pytest.mark.nightly

APP = Path(__file__).with_name("dialogues.py")
N_SCORED = 128


@pytest.fixture(scope="module")
def model() -> Path:
    path = split_model()
    if not path.is_file():
        pytest.skip("no real chat model in the cache: make it with `python -m tools.split_dense`")
    return path


def said(folder: Path, *command: object, **environment: str) -> dict[str, Any]:
    done = outcome(command, folder, **environment)
    assert done.code == 0, done.err
    return json.loads(done.out)


@pytest.fixture(scope="module")
def stock(model, reference_lib, tmp_path_factory):
    """Return the answers of the unpatched library, from a process that does not import spac."""
    folder = tmp_path_factory.mktemp("stock")
    found = said(folder, sys.executable, APP, model, LLAMA_CPP_LIB_PATH=str(reference_lib))
    assert found["kind"] == "llama_cpp.llama"
    return found["answers"]


def test_dialogues_are_those_of_the_unpatched_library(model, stock, tmp_path):
    found = said(tmp_path, *EXEC, "--slots", "25%", APP, model)
    assert found["kind"] == "spac.llama_cpp_python.llama"
    for ours, theirs in zip(found["answers"], stock, strict=True):
        assert ours == theirs


def test_it_speaks(stock):
    """The dialogues have what they are there for, so that equal ones mean something."""
    assert len(stock) == 20
    turns = [turn for dialogue in stock for turn in dialogue]
    assert {reason for _, _, reason in turns} >= {"stop", "length", "tool_calls"}
    yes, fields, _, call = stock[15:19]
    assert yes[0][0].startswith(("yes, ", "no, "))
    assert json.loads(fields[0][0]).keys() == {"city", "big"}
    assert json.loads(call[0][1]["arguments"]).keys() == {"city", "big"}


def scores(path: Path, used: int | None, **options: Any) -> Scores:
    """Return what a model says of a text that it was not made from, with some number of experts used."""
    values = {} if used is None else {"override_kv": {"glm4moe.expert_used_count": used}}
    config = EngineConfig(target=path, ctx=512, threads=1, threads_batch=1, state="off", **values, **options)
    with Engine(config) as engine:
        tokens = engine.tokenize("\n\n".join(docstrings(HELD_OUT)))[: N_SCORED + 1]
        return score(engine, tokens, 1)


def test_with_all_experts_it_is_the_dense_model(model):
    dense, whole = scores(fetch(), None), scores(model, 20, device="simulated", slots="50%")
    half = scores(model, None, device="cpu")
    gaps = [abs(dense.chosen.mean() - each.chosen.mean()) for each in (whole, half)]
    agreed = [(dense.top_ids == each.top_ids).mean() for each in (whole, half)]
    assert gaps[0] < 0.03 < 0.3 < gaps[1]
    assert agreed[0] > 0.9 > agreed[1]
