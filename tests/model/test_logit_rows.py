"""An engine's contexts have rows of logits only for tokens that the loop reads. Slots use the
saved memory."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.server_loop import parameters_of
from spac.llama_cpp_python.llama import Llama
from spac.model.params import draft_rows, target_rows
from tests.conftest import TinyModel
from tests.engine.conftest import config as usual
from tests.engine.conftest import memory

# isort: split
import llama_cpp.llama_cpp as api  # this import must follow spac's, because spac decides on the library

VOCAB, UBATCH, LONGEST = 16384, 256, 6
PROMPT = list(range(5, 205)) * 2  # more tokens than a ubatch has
AS_LLAMA_CPP = {"n_outputs_max": 0}


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3moe", n_expert=12, n_ff_exp=128, n_vocab=VOCAB)


@pytest.fixture(scope="module")
def draft(tiny_model: TinyModel) -> Path:
    return tiny_model("qwen3", n_vocab=VOCAB)


@pytest.fixture(scope="module")
def mtp(tiny_model: TinyModel) -> Path:
    return tiny_model("glm4moe", n_layer=4, n_vocab=VOCAB, options={"mtp": 1})


def config(target: Path, **options: Any) -> EngineConfig:
    return usual(target, **{"ctx": 768, "ubatch": UBATCH, "draft_length": LONGEST, **options})


def outcome(settings: EngineConfig) -> tuple[int, int, list[Any]]:
    """Return the bytes on the device beside slots, the number of slots, and tokens with probabilities."""
    with Engine(settings) as engine:
        begun = memory().used
        seen: list[Any] = []
        sequence = engine.sequence(parameters_of(settings.sampling), 13, n_top=4)
        sequence.prefill(np.array(PROMPT, np.int32))
        while not (step := sequence.step()).reason:
            chosen, ids, top = sequence.probabilities(4)
            seen += [step.tokens.tolist(), chosen.tolist(), ids.tolist(), top.tolist()]
        slots = engine.experts.slots if engine.experts is not None else None
        n_slots, slot_bytes = (slots.n_slots, slots.bytes) if slots is not None else (0, 0)
        # A step's buffers exist before the step. The loop makes both of an MTP context when it starts.
        assert memory().used <= begun + (1 << 16)
        return begun - slot_bytes, n_slots, seen


def both(settings: EngineConfig) -> tuple[tuple[int, int, list[Any]], tuple[int, int, list[Any]]]:
    return outcome(replace(settings, context_params=AS_LLAMA_CPP)), outcome(settings)


def test_rows_that_nobody_reads_take_no_memory(target: Path, draft: Path, mtp: Path) -> None:
    for model, options, rows in (
        (target, {"draft_type": "ngram-simple"}, [LONGEST + 1]), (target, {"draft": draft}, [LONGEST + 1, 1]),
        (mtp, {"draft_type": "draft-mtp"}, [1, 1]),
    ):  # fmt: skip
        every, needed = both(config(model, slots=6, **options))
        assert needed[1:] == every[1:]
        assert every[0] - needed[0] == pytest.approx(sum(UBATCH - n for n in rows) * VOCAB * 4, rel=0.1)


def test_their_memory_holds_slots(target: Path, draft: Path) -> None:
    settings = config(target, draft=draft, slots="auto", deterministic=True)
    without = outcome(replace(settings, slots=0, context_params=AS_LLAMA_CPP))[0]
    limited = replace(settings, vram_limit=without + (1 << 20) + int(without * 0.06))
    every, needed = both(limited)
    assert needed[2] == every[2]
    assert 0 < every[1] < needed[1] == 36


@pytest.mark.parametrize(
    ("options", "of_target", "of_draft"),
    [
        ({}, 7, 1),
        ({"draft_length": 0}, 1, 1),
        ({"draft_length": None, "draft_max": 9}, 10, 1),
        ({"draft_type": "ngram-simple"}, 7, 1),
        ({"draft_type": "draft-mtp"}, None, 1),
        ({"draft_type": "draft-eagle3"}, None, None),
        ({"draft_type": "draft-dflash,ngram-simple"}, None, 7),
        ({"context_params": {"embeddings": True}}, None, None),
        ({"context_params": {"n_seq_max": 20}}, 20, 20),
    ],
)
def test_who_gets_how_many(options: dict[str, Any], of_target: int | None, of_draft: int | None) -> None:
    settings = config(Path("x.gguf"), draft=Path("y.gguf"), **options)
    assert target_rows(settings).get("n_outputs_max") == of_target
    assert draft_rows(settings).get("n_outputs_max") == of_draft


# Contexts of llama_cpp


def decode_all(llm: Llama, n_tokens: int) -> None:
    """Decode as some apps do, with llama_cpp's low-level functions and logits for every token."""
    llm.reset()
    api.llama_memory_clear(api.llama_get_memory(llm.ctx), True)
    batch = api.llama_batch_init(n_tokens, 0, 1)
    batch.n_tokens = n_tokens
    for i in range(n_tokens):
        batch.token[i], batch.pos[i], batch.logits[i] = 5 + i, i, 1
        batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
    assert api.llama_decode(llm.ctx, batch) == 0
    rows = np.ctypeslib.as_array(api.llama_get_logits(llm.ctx), (n_tokens, VOCAB))
    assert np.isfinite(rows).all()
    api.llama_batch_free(batch)


def test_llama_cpps_parameters_decide_of_its_contexts(target: Path) -> None:
    options: dict[str, Any] = {"device": "simulated", "slots": 6, "n_ctx": 256, "verbose": False}
    with closing(Llama(str(target), **options)) as llm:
        decode_all(llm, 40)
    own = {"context_params": {"n_outputs_max": LONGEST + 1}, "draft_type": "ngram-simple"}
    with closing(Llama(str(target), draft_length=LONGEST, **own, **options)) as llm:
        assert llm.context_params.n_outputs_max == LONGEST + 1
        assert llm([5, 9, 2, 40], max_tokens=8, temperature=0)["choices"]


def test_a_configured_llama_takes_what_it_needs(target: Path) -> None:
    settings = config(target, slots=6)
    with closing(Llama.from_config(settings, verbose=False)) as llm:
        assert llm.context_params.n_outputs_max == LONGEST + 1
        expected = llm(PROMPT, max_tokens=4, temperature=0)["choices"][0]["text"]
        text = llm(PROMPT, max_tokens=4, temperature=0, logprobs=2)["choices"][0]["text"]
        assert text == expected
        processor: Any = lambda _ids, scores: scores  # noqa: E731  # llama_cpp's own loop
        assert llm(PROMPT, max_tokens=4, temperature=0, logits_processor=[processor])["choices"]
    with closing(Llama.from_config(settings, verbose=False, logits_all=True)) as llm:
        assert llm.context_params.n_outputs_max == 0
        choice = llm("abcdefghijklmnop", max_tokens=4, temperature=0, echo=True, logprobs=2)["choices"][0]
        assert len(choice["logprobs"]["token_logprobs"]) > 16
        decode_all(llm, 40)
    with closing(Llama.from_config(settings, verbose=False, embedding=True)) as llm:
        found = llm.create_embedding(["abcdefghijklmnop", "qrs"])["data"]
        assert np.isfinite(np.array(found[0]["embedding"], np.float64)).all()
