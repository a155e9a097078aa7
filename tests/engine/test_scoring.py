"""The log probabilities of a text's tokens are those of llama_cpp's own loop with all logits."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.engine import Engine
from spac.engine.scoring import CHUNK, score
from spac.errors import Cancelled, InputError
from spac.llama_cpp_python.llama import Llama
from tests.engine.conftest import config
from tests.llama_cpp_python.conftest import EXACT
from tools.models import Shape

TEXT = "def add(a, b):\n    return a + b\n\n\n" * 12
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {"device": "cpu"},
    "split, several": {"device": "simulated", "slots": 0.25, "parallel": 3},
    "drafting": {"device": "simulated", "slots": 0.25, "draft": True, "draft_length": 4},
    "small batches": {"device": "cpu", "batch": 48, "ubatch": 16},
}


def is_close(found: Any, wanted: Any) -> bool:
    """Return True if nearly all values are equal.

    Batches of other sizes round otherwise, so a token may choose another expert where two are nearly tied.
    """
    return bool((np.abs(np.asarray(found) - wanted) < 0.1).mean() > 0.98)


def engine_of(target: Path, **options: Any) -> Engine:
    exact = {"cache_type_k": "f32", "cache_type_v": "f32", "flash_attn": "on"}
    return Engine(config(target, **{"ctx": 1024, "batch": 256, "ubatch": 256, **exact, **options}))


@pytest.fixture(scope="module")
def reference(target):
    """Return the text's tokens, and llama_cpp's log probabilities of all tokens behind each of them."""
    with closing(Llama(str(target), device="cpu", logits_all=True, **{**EXACT, "n_ctx": 1024})) as llm:
        tokens = llm.tokenize(TEXT.encode())
        llm.eval(tokens)
        logits = np.array(llm.scores[: len(tokens)], np.float64)
    return tokens, logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)


@pytest.mark.parametrize("name", ENGINES)
def test_they_are_llama_cpps(name, target, reference, tiny_model):
    options = dict(ENGINES[name])
    if options.get("draft"):
        options["draft"] = tiny_model("qwen3moe", types={"*": "Q4_0"})
    with engine_of(target, **options) as engine:
        tokens = engine.tokenize(TEXT)
        assert len(tokens) > 2 * CHUNK  # several chunks, the last one shorter
        assert len(tokens) % CHUNK
        scores = score(engine, tokens, 4)
        again = score(engine, tokens, 4)  # all of it is in the memory now
    n, (same, wanted) = len(tokens) - 1, reference
    assert tokens.tolist() == same
    assert is_close(scores.chosen, wanted[np.arange(n), tokens[1:]])
    assert is_close(scores.top, np.take_along_axis(wanted[:n], scores.top_ids, axis=1))
    assert is_close(scores.top, -np.sort(-wanted[:n], axis=1)[:, :4])
    assert is_close(again.chosen, scores.chosen)


def test_other_texts_may_run_beside_it_and_take_its_place(target):
    with engine_of(target, device="simulated", slots=0.25, parallel=2) as engine:
        tokens = engine.tokenize(TEXT)
        alone = score(engine, tokens)
        stop = threading.Event()

        def others() -> None:
            while not stop.is_set():
                for _ in engine.generate("class Stack:\n" * 30, 3):
                    pass

        beside = [threading.Thread(target=others) for _ in range(3)]
        for each in beside:
            each.start()
        try:
            found = [score(engine, tokens) for _ in range(4)]
        finally:
            stop.set()
            for each in beside:
                each.join()
    for scores in found:
        assert is_close(scores.chosen, alone.chosen)


def test_a_model_with_a_state(tiny_model):
    with engine_of(tiny_model("qwen3next", Shape(n_layer=4)), device="cpu", ctx=512) as engine:
        tokens = engine.tokenize(TEXT)[:150]
        whole = score(engine, tokens)
        part = score(engine, tokens[:40])  # goes back behind what is read
    assert is_close(whole.chosen[:39], part.chosen)


def test_what_cannot_be_scored(target):
    with engine_of(target, device="cpu", ctx=512) as engine:
        tokens = engine.tokenize(TEXT)
        assert len(score(engine, tokens[:1]).chosen) == 0
        assert len(score(engine, tokens[:2]).chosen) == 1
        with pytest.raises(InputError, match="maximum context length is 512 tokens"):
            score(engine, np.resize(tokens, 513))
        with pytest.raises(Cancelled):
            score(engine, tokens, is_cancelled=lambda: True)
        assert len(score(engine, np.resize(tokens, 512)).chosen) == 511
