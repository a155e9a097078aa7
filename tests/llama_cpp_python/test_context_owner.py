"""llama.cpp's loop and llama_cpp's functions use one context in turns. Each begins where the other ended.

The memory of some models cannot go back: a recurrent one, and one with a window.
"""

from __future__ import annotations

import itertools
from contextlib import closing
from typing import Any

import numpy as np
import pytest

from spac.llama_cpp_python.generation import LoopRun, TokenRun
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import EXACT
from tools.models import write_adapter

# isort: split
import llama_cpp

GREEDY: dict[str, Any] = {"temp": 0.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3moe": {}, "qwen3next": {}, "lfm2moe": {}, "step35": {"n_swa": 16}, "gpt-oss": {"n_swa": 16},
}  # fmt: skip
SIZES: dict[str, Any] = {
    **EXACT, "n_ctx": 512, "n_batch": 64, "n_ubatch": 64, "swa_full": False, "flash_attn": False,
}  # fmt: skip
SAME = llama_cpp.LogitsProcessorList([lambda _ids, scores: scores])
"""A processor that changes nothing, with which llama_cpp's own loop generates."""
RNG = np.random.default_rng(2)
LONG, OTHER = (RNG.integers(3, 250, 120).tolist() for _ in range(2))


@pytest.fixture(scope="module", params=FAMILIES)
def both(request, tiny_model):
    """Yield a split model, and one whose context nobody but llama_cpp uses."""
    path = str(tiny_model(request.param, **FAMILIES[request.param]))
    with (
        closing(Llama(path, device="simulated", slots="25%", **SIZES)) as split,
        closing(Llama(path, device="cpu", **SIZES)) as fresh,
    ):
        assert fresh.engine is None
        yield split, fresh


def said(llm: Llama, tokens: list[int], n: int = 6, **options: Any) -> list[int]:
    return list(itertools.islice(llm.generate(tokens, **GREEDY, **options), n))


def evaluated(llm: Llama, tokens: list[int], n: int = 6) -> list[int]:
    made: list[int] = []
    llm.eval(tokens)
    for _ in range(n):
        made.append(int(llm.sample(**GREEDY)))
        llm.eval(made[-1:])
    return made


def anew(fresh: Llama, tokens: list[int], n: int = 6) -> list[int]:
    """Return what llama_cpp says on an empty context."""
    fresh.reset()
    fresh._ctx.kv_cache_clear()
    return evaluated(fresh, tokens, n)


def held(llm: Llama) -> list[int]:
    return llm._input_ids.tolist()


def test_functions_go_on_behind_the_loop(both):
    split, fresh = both
    made = said(split, LONG)
    assert made == anew(fresh, LONG)
    assert held(split) == LONG + made[:-1]
    assert int(split.sample(**GREEDY)) == made[-1]  # The context has the logits of what it holds.
    assert evaluated(split, [7, 8]) == anew(fresh, [*LONG, *made[:-1], 7, 8])


def test_the_loop_goes_on_behind_functions(both):
    split, fresh = both
    split.reset()
    made = evaluated(split, LONG)
    text = [*LONG, *made, 9]
    assert said(split, text) == anew(fresh, text)
    assert held(split)[: len(text)] == text
    assert said(split, [3, 4], reset=False) == anew(fresh, [*held(split)[: len(text) + 5], 3, 4])


def test_functions_go_back(both):
    split, fresh = both
    said(split, LONG)
    for n in (100, 40, 1):
        split.n_tokens = n
        assert evaluated(split, [5, 6], 2) == anew(fresh, [*LONG[:n], 5, 6], 2)


def test_llama_cpps_loop_goes_back(both):
    split, fresh = both
    for tokens in (LONG, [*LONG[:90], 4, 5], OTHER, [*OTHER[:30], 4, 5], OTHER):
        assert said(split, tokens, logits_processor=SAME) == anew(fresh, tokens)
        assert isinstance(split._run, LoopRun)
    assert said(split, [*OTHER[:50], 1]) == anew(fresh, [*OTHER[:50], 1])
    assert isinstance(split._run, TokenRun)


def test_states_of_either(both):
    split, fresh = both
    made = said(split, LONG)
    of_loop = split.save_state()
    assert of_loop.llama_state == b""
    split.reset()
    split.eval(OTHER)
    of_functions = split.save_state()
    assert of_functions.llama_state
    for state, text in ((of_loop, LONG + made[:-1]), (of_functions, OTHER)) * 2:
        split.load_state(state)
        assert held(split) == text
        assert evaluated(split, [7], 3) == anew(fresh, [*text, 7], 3)
        split.load_state(state)
        assert said(split, [*text, 8]) == anew(fresh, [*text, 8])
    fresh.load_state(of_loop)
    assert evaluated(fresh, [7], 3) == anew(fresh, [*LONG, *made[:-1], 7], 3)


def test_functions_within_a_stream(both):
    """A generation that is under way continues behind what the reader evaluates."""
    split, fresh = both
    running = split.generate(LONG, **GREEDY)
    first = next(running)
    split.eval([first, 11, 12])
    second = next(running)
    assert held(split) == [*LONG, first, 11, 12, first]
    assert [second] == anew(fresh, held(split), 1)
    assert int(split.sample(**GREEDY)) == second
    assert [next(running)] == anew(fresh, held(split), 1)
    running.close()


def test_the_loop_within_llama_cpps_loop(both):
    split, fresh = both
    running = split.generate(LONG, logits_processor=SAME, **GREEDY)
    first = next(running)
    said(split, OTHER, 1)
    second = next(running)
    assert held(split) == [*OTHER, first]
    assert [second] == anew(fresh, [*OTHER, first], 1)
    running.close()


def test_the_pointer_is_of_a_context_that_holds_the_tokens(both):
    split, fresh = both
    said(split, LONG, 1)
    anew(fresh, LONG, 0)
    shape = (split.n_vocab(),)
    rows = (np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), shape) for llm in both)
    np.testing.assert_allclose(*rows, atol=1e-4)


def test_others_may_evaluate_on_the_context(both):
    """llama_cpp's chat handlers put images into the context, which the tokens do not tell."""
    split, fresh = both
    told, hidden = LONG[:20], [30, 31, 32]
    split.reset()
    split.eval(told)
    split._batch.set_batch(batch=hidden, n_past=20, logits_all=False)
    split._ctx.decode(split._batch)
    split.n_tokens += len(hidden)
    split.input_ids[20:23] = 0
    split.eval([33])
    assert said(split, held(split)) == anew(fresh, [*told, *hidden, 33])
    assert isinstance(split._run, LoopRun)
    assert said(split, LONG) == anew(fresh, LONG)
    assert isinstance(split._run, TokenRun)


def test_texts_of_the_engine_take_the_context_too(both):
    """So does a completion, and a stream that it interrupts has a limit of its own."""
    split, fresh = both
    split.reset()
    split.eval(LONG)
    list(split.engine.generate(OTHER, 4))
    assert evaluated(split, [7], 3) == anew(fresh, [*LONG, 7], 3)
    stream = split.create_completion(LONG, max_tokens=4, stream=True, temperature=0)
    next(stream)
    assert len(said(split, OTHER, 20)) == 20
    stream.close()


def test_a_generation_goes_on_behind_an_end_token(both):
    """A reader of tokens decides when a text ends."""
    split, _ = both
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "a"', verbose=False)
    made = said(split, LONG, 4, grammar=grammar)
    assert [split.target.is_end(each) for each in made] == [False, True, False, True]


def test_embeddings_between_texts(opened):
    """The loop asks the context for logits alone, and `embed` for embeddings."""
    split, plain = (opened(device=name, embedding=True) for name in ("simulated", "cpu"))
    text = split("def f(", max_tokens=6, temperature=0)["choices"][0]["text"]
    for _ in range(2):
        np.testing.assert_allclose(split.embed("import os"), plain.embed("import os"), atol=0.05)
        assert split.n_tokens == 0
        assert split("def f(", max_tokens=6, temperature=0)["choices"][0]["text"] == text


def test_an_adapter_of_llama_cpps_argument(tiny_model, opened, tmp_path):
    """The loop applies `lora_path` too."""
    path = tiny_model("qwen3moe")
    adapter = write_adapter(tmp_path / "adapter.gguf", path, r"attn_q\.weight")
    told = []
    for device in ("simulated", "cpu"):
        bare = opened(path, device=device, **EXACT)
        llm = opened(path, device=device, lora_path=str(adapter), lora_scale=4.0, **EXACT)
        assert (llm.lora_path, llm.lora_scale) == (str(adapter), 4.0)
        told.append(said(llm, LONG, 20))
        assert told[-1] != said(bare, LONG, 20)
    assert told[0] == told[1]


def test_a_batch_is_one_graph_beside_a_window(tiny_model, opened):
    """llama.cpp would remove tokens from the window that a batch's earlier graphs still see."""
    path, sizes = tiny_model("gpt-oss", n_swa=16), {"n_batch": 64, "n_ubatch": 32}
    llm = opened(path, device="simulated", slots="25%", **sizes)
    assert llm.n_batch == llama_cpp.llama_n_batch(llm.ctx) == llama_cpp.llama_n_ubatch(llm.ctx) == 32
