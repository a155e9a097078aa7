"""`spac.Llama` keeps its state as llama_cpp's class promises while llama.cpp's loop generates."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spac
from spac.config import Slots
from spac.errors import InputError
from spac.llama_cpp_python.generation import LoopRun, TokenRun
from spac.llama_cpp_python.llama import Llama
from tests.conftest import TinyModel
from tests.llama_cpp_python.conftest import DRAFT, EXACT, TARGET, Open

# isort: split
import llama_cpp

PROMPT = "The functions are defined in"
GREEDY: dict[str, Any] = {"temp": 0.0}


def take(llm: Llama, tokens: list[int], n: int, **options: Any) -> list[int]:
    return list(itertools.islice(llm.generate(tokens, **{**GREEDY, **options}), n))


def tokens_of(llm: Llama, text: str = PROMPT) -> list[int]:
    return list(llm.tokenize(text.encode()))


def held(llm: Llama) -> list[int]:
    """Return the tokens that llama_cpp records as being in the context."""
    return llm.input_ids[: llm.n_tokens].tolist()


def next_token(llm: Llama, token: int) -> int:
    """Return the next token after llama_cpp's own means evaluated `token` behind the present context."""
    llm.eval([token])
    return int(llm.sample(**GREEDY))


def test_is_lazy() -> None:
    assert spac.Llama is Llama
    with pytest.raises(AttributeError, match="module 'spac' has no attribute 'Lama'"):
        _ = spac.Lama  # type: ignore[attr-defined]


def test_the_split_and_the_draft_are_at_work(split: Llama) -> None:
    split.reset()
    take(split, tokens_of(split), 20)
    stats = split.stats
    assert stats.device == "simulated"
    assert stats.drafted_tokens > stats.accepted_tokens > 0
    assert stats.activations > 0
    assert stats.uploads > 0
    assert stats.generated_tokens == 20


@pytest.mark.parametrize("options", [{"device": "simulated"}, {"device": "cpu"}, {"vocab_only": True}])
def test_statistics_before_the_first_call(opened: Open, options: dict[str, Any]) -> None:
    stats = opened(**options).stats
    assert (stats.generated_tokens, stats.prompt_tokens, stats.reason) == (0, 0, "")
    assert stats.device == options.get("device", "cpu")
    assert " 0 tokens" in stats.table()


@settings(max_examples=15, deadline=None)
@given(
    n_first=st.integers(1, 12),
    n_second=st.integers(1, 12),
    cut=st.integers(1, 16),
    tail=st.lists(st.integers(0, 255), max_size=4),
)
def test_bookkeeping(
    split: Llama, plain: Llama, n_first: int, n_second: int, cut: int, tail: list[int]
) -> None:
    """`n_tokens` and `input_ids` are those that llama_cpp's loop leaves, after any generation, read or not.
    The context really holds these tokens: the next call gives the same tokens as there."""
    second = [*tokens_of(plain), 100, 200][:cut] + tail
    for llm in (split, plain):
        llm.reset()
    assert take(split, tokens_of(split), n_first) == take(plain, tokens_of(plain), n_first)
    assert held(split) == held(plain)
    assert take(split, second, n_second) == take(plain, second, n_second)
    assert held(split) == held(plain)
    assert next_token(split, 77) == next_token(plain, 77)


def test_a_prompt_that_is_there_is_not_evaluated_again(split: Llama) -> None:
    split.reset()
    first = take(split, tokens_of(split), 8)
    longer = tokens_of(split) + first + tokens_of(split, " and")
    take(split, longer, 4)
    assert 0 < split.stats.prefilled_tokens < len(longer) - len(tokens_of(split)) - 4


def test_state_after_a_generation_of_the_loop(split: Llama, tiny_model: TinyModel, opened: Open) -> None:
    split.reset()
    tokens = take(split, tokens_of(split), 6)
    state, before = split.save_state(), held(split)
    expected = take(split, [*before, 9], 6)
    take(split, tokens_of(split, "something else"), 5)
    for llm in (split, opened(tiny_model("qwen3moe"), **EXACT)):
        llm.load_state(state)
        assert held(llm) == before == tokens_of(split) + tokens[:-1]
        assert take(llm, [*before, 9], 6) == expected


def test_a_recurrent_state_is_not_taken_back_too_far(tiny_model: TinyModel, opened: Open) -> None:
    """The memory keeps its last few states to rewind to. A saved state does not have them."""
    fresh, loaded = (opened(tiny_model("lfm2moe"), draft_type="ngram-simple", draft_length=4) for _ in "12")
    tokens = tokens_of(fresh)
    expected = take(fresh, tokens, 6)
    fresh.reset()
    fresh.eval(tokens)
    loaded.load_state(fresh.save_state())
    assert take(loaded, tokens, 6) == expected


def test_ram_cache(split: Llama, tiny_model: TinyModel, opened: Open) -> None:
    cache = llama_cpp.LlamaRAMCache()
    split.reset()
    split.set_cache(cache)
    try:
        text = split(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"]
    finally:
        split.set_cache(None)
    other = opened(tiny_model("qwen3moe"), **EXACT)
    other.set_cache(cache)
    assert other(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"] == text
    [state] = cache.cache_state.values()
    assert state.llama_state == b""  # llama.cpp's loop has its own cache.
    assert 0 < state.llama_state_size < 2048


def test_a_ram_cache_keeps_what_the_loop_has(opened: Open) -> None:
    llm = opened(device="simulated")
    llm.set_cache(llama_cpp.LlamaRAMCache())
    text = llm(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"]
    llm("A text of its own", max_tokens=6, temperature=0)
    assert llm(PROMPT, max_tokens=6, temperature=0)["choices"][0]["text"] == text
    assert llm.stats.cached_tokens == len(tokens_of(llm)) - 1


def test_without_reset_tokens_are_appended(split: Llama, plain: Llama) -> None:
    found = []
    for llm in (split, plain):
        llm.reset()
        take(llm, tokens_of(llm), 3)
        found.append((take(llm, [40, 50], 5, reset=False), held(llm)))
    assert found[0] == found[1]


def test_tokens_may_be_sent(split: Llama) -> None:
    split.reset()
    running = split.generate(tokens_of(split), **GREEDY)
    first = next(running)
    second = running.send([40, 50])
    third = next(running)
    running.close()
    text = [*tokens_of(split), first, 40, 50]
    assert held(split) == [*text, second]
    split.reset()
    assert take(split, text, 2) == [second, third]


def test_interrupted_by_another_generation(split: Llama, plain: Llama) -> None:
    """Two generations on one model share its context. The results are of no use, but nothing breaks."""
    split.reset()
    first = split.generate(tokens_of(split), **GREEDY)
    taken = [next(first), next(first)]
    second = split.generate(tokens_of(split, "Another"), **GREEDY)
    next(second)
    context = held(split)
    follows = next(first)  # its last token is evaluated behind the tokens of the other one
    assert held(split) == [*context, taken[-1]]
    second.close()  # the context does not belong to it any more
    assert held(split) == [*context, taken[-1]]
    first.close()
    for llm in (split, plain):
        llm.reset()
    assert take(plain, [*context, taken[-1]], 1) == [follows]
    assert take(split, tokens_of(split), 4) == take(plain, tokens_of(plain), 4)


def test_context_full(split: Llama) -> None:
    split.reset()
    tokens = tokens_of(split) * 8
    assert len(tokens) < split.n_ctx()
    made = list(split.generate(tokens, **GREEDY))
    assert len(made) == split.n_ctx() - len(tokens)
    assert split.stats.reason == "length"
    with pytest.raises(ValueError, match="exceed context window"):
        split.create_completion(tokens * 3)


def test_stopping_criteria_and_exceptions(split: Llama, plain: Llama) -> None:
    n = len(tokens_of(split))
    limit = llama_cpp.StoppingCriteriaList([lambda ids, _logits: len(ids) > n + 5])

    def fail(ids: object, _logits: object) -> bool:
        raise ZeroDivisionError

    found = []
    for llm in (split, plain):
        llm.reset()
        made = take(llm, tokens_of(llm), 100, stopping_criteria=limit)
        with pytest.raises(ZeroDivisionError):
            take(llm, tokens_of(llm), 3, stopping_criteria=llama_cpp.StoppingCriteriaList([fail]))
        found.append((made, held(llm)))
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
    assert take(split, tokens_of(split), 3) == found[0][0][:3]


SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temp": 0.8},
    "wide": {"temp": 1.4, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.7},
    "narrow": {"temp": 1.4, "top_k": 5, "top_p": 0.7, "min_p": 0.2},
    "none": {"temp": -1.0},
    "out of range": {"temp": 1.0, "top_k": -1, "top_p": 1.5, "min_p": -1.0},
    "repeat": {"temp": 0.9, "repeat_penalty": 1.4},
    "frequency": {"temp": 0.0, "frequency_penalty": 0.8},
    "presence": {"temp": 0.0, "presence_penalty": 1.5},
    "mirostat 1": {"temp": 0.3, "mirostat_mode": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"temp": 0.8, "mirostat_mode": 2, "mirostat_eta": 0.3},
    "mirostat with penalties": {"temp": 0.8, "mirostat_mode": 2, "repeat_penalty": 1.4},
}


@pytest.mark.parametrize("options", SAMPLING.values(), ids=SAMPLING)
def test_sampling_is_llama_cpps(split: Llama, plain: Llama, options: dict[str, Any]) -> None:
    """The same seed gives the same tokens. The chain of samplers is the same and draws as often."""
    found = []
    for llm in (split, plain):
        llm.reset()
        llm.set_seed(11)
        found.append(take(llm, tokens_of(llm), 16, **options))
        llm.set_seed(12)
        found.append(take(llm, tokens_of(llm), 16, **options))
    assert found[:2] == found[2:]
    assert isinstance(split._run, TokenRun), "llama.cpp's loop generates"
    if options["temp"] != 0:
        assert found[0] != found[1]


def test_a_grammar_may_have_another_root(split: Llama) -> None:
    """The rule that is called root keeps its meaning under another name, but not in texts and classes."""
    text = 'root ::= "root" [root] # root\nlist ::= "a" root "-" my-root\nmy-root ::= "b"'
    grammar = llama_cpp.LlamaGrammar.from_string(text, verbose=False)
    made = {}
    for root in ("root", "list", "my-root"):
        grammar._root = root
        made[root] = split(PROMPT, grammar=grammar, temperature=0, max_tokens=20)["choices"][0]["text"]
        assert isinstance(split._run, TokenRun), "llama.cpp's loop generates"
    assert re.fullmatch("root[rot]", made["root"])
    assert made["list"] == f"a{made['root']}-b"
    assert made["my-root"] == "b"


def test_random_seed(split: Llama) -> None:
    split.set_seed(-1)
    texts = {tuple(take(split, tokens_of(split), 12, temp=1.0)) for _ in range(4)}
    assert len(texts) > 1


def test_logit_bias_and_processors(split: Llama, plain: Llama, caplog: pytest.LogCaptureFixture) -> None:
    def forbid(_ids: object, scores: Any) -> Any:
        scores[:60] = -np.inf
        return scores

    split._said.clear()
    processors = llama_cpp.LogitsProcessorList([forbid])
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    biased = [llm(PROMPT, logit_bias={65: 90.0}, **options)["choices"] for llm in (split, plain)]
    assert biased[0] == biased[1]
    assert isinstance(split._run, TokenRun)  # llama.cpp's loop generates
    assert not caplog.messages
    for _ in range(2):
        forbidden = [llm(PROMPT, logits_processor=processors, **options)["choices"] for llm in (split, plain)]
        assert forbidden[0] == forbidden[1]
        assert isinstance(split._run, LoopRun)
    assert caplog.messages == [
        "a logits_processor: such calls run on llama_cpp's own loop, without speculation"
    ]
    both = split(PROMPT, logit_bias={65: 90.0}, logits_processor=processors, **options)["choices"]
    assert both == biased[0]


def test_the_simulated_devices_former_name(opened: Open) -> None:
    llm = opened(device="stand-in", slots="25%")
    assert llm.engine is not None
    assert llm.engine.device is not None
    assert llm.engine.config.device == llm.engine.device.name == "simulated"


def test_what_llama_cpp_evaluates_is_demand(opened: Open) -> None:
    """llama_cpp's own loop runs on the split too, and the scheduler sees its demand."""
    llm = opened(device="simulated", slots="25%", logits_all=True)
    assert llm.engine is not None
    assert llm.engine.experts is not None
    take(llm, tokens_of(llm), 8)
    assert llm.engine.experts.slots.n_resident > 0
    stats = llm.stats
    assert stats is not None
    assert (stats.prefilled_tokens, stats.generated_tokens, stats.steps) == (len(tokens_of(llm)), 8, 7)
    assert stats.tokens_per_second
    n_pairs = sum(layer.n_used for layer in llm.engine.experts.layers)
    assert stats.activations == 7 * n_pairs
    assert len(llm._scores) == llm.n_tokens
    assert np.isfinite(llm._scores).all()


def test_demand_of_prompts_is_not_counted(opened: Open) -> None:
    llm = opened(device="simulated", slots="25%", logits_all=True)
    assert llm.engine is not None
    assert llm.engine.experts is not None
    llm.eval(tokens_of(llm))
    assert llm.engine.experts.stats["activations"] == 0


def test_models_do_not_disturb_each_other(tiny_model: TinyModel, opened: Open) -> None:
    """Several models of several shapes, each in the middle of a generation, give what they give alone."""
    kinds: list[tuple[Any, dict[str, Any]]] = [
        (TARGET, {"draft": DRAFT, "slots": 12}),
        (TARGET, {"slots": "10%"}),
        (tiny_model("qwen3moe"), {"draft_type": "ngram-simple", "slots": 3}),
        (tiny_model("deepseek2"), {"slots": "50%", "scheduler": "moe-spac"}),
        (tiny_model("qwen3"), {}),
    ]
    alone = []
    for path, options in kinds:
        llm = opened(path, **options)
        alone.append(take(llm, tokens_of(llm), 12))
        llm.close()
    models = [opened(path, **options) for path, options in kinds]
    running = [llm.generate(tokens_of(llm), **GREEDY) for llm in models]
    together = [[next(each) for each in running] for _ in range(12)]
    assert list(map(list, zip(*together, strict=True))) == alone
    models[0].close()
    models[2].close()
    assert take(models[3], tokens_of(models[3]), 12) == alone[3]


def test_without_experts_it_is_plain_llama_cpp(tiny_model: TinyModel, opened: Open) -> None:
    llm = opened(tiny_model("qwen3"))
    assert llm.engine is None
    assert llm.notes == []
    assert len(take(llm, tokens_of(llm), 4)) == 4
    assert (llm.stats.device, llm.stats.generated_tokens, llm.stats.hit_rate) == ("cpu", 4, None)


def test_draft_for_a_model_without_experts(tiny_model: TinyModel, opened: Open) -> None:
    plain = opened(tiny_model("qwen3"))
    drafted = opened(tiny_model("qwen3"), draft=tiny_model("qwen3"), draft_length=3)
    assert take(drafted, tokens_of(plain), 12) == take(plain, tokens_of(plain), 12)
    assert drafted.stats.accepted_tokens > 4


def test_pickled(opened: Open) -> None:
    llm = opened(draft_type="ngram-simple", draft_length=3, slots=9)
    twin = pickle.loads(pickle.dumps(llm))
    try:
        assert twin.engine.config.slots == Slots(count=9)
        assert take(twin, tokens_of(llm), 5) == take(llm, tokens_of(llm), 5)
    finally:
        twin.close()


def test_closed(opened: Open) -> None:
    llm = opened(draft=DRAFT)
    llm.close()
    llm.close()
    for use in (lambda: llm("a"), lambda: next(llm.generate([1])), lambda: llm.eval([1])):
        with pytest.raises(InputError, match="the model is closed"):
            use()


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no such file": ({"path": TARGET.with_name("missing.gguf")}, "missing.gguf: there is no such file"),
    "not a model": ({"path": TARGET.with_name("MODEL_CARD.md")}, "this is not a GGUF file"),
    "no such draft": ({"draft": "missing.gguf"}, "missing.gguf: there is no such file"),
    "slots": ({"slots": "many"}, "slots: must be 'auto', a count"),
    "scheduler": ({"scheduler": "fifo"}, "unknown scheduler 'fifo'"),
    "device": ({"device": "cuda7"}, "unknown device 'cuda7'"),
    "context": ({"n_ctx": -1}, "ctx must be 0 to"),
    "a slip of the pen": ({"drafts": "x"}, "Llama() has no 'drafts'; did you mean 'draft'?"),
    "cache type": ({"type_k": 99}, "could not make a context: "),
}


@pytest.mark.parametrize(("options", "message"), REFUSED.values(), ids=REFUSED)
def test_refusals(opened: Open, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        opened(**options)
    assert isinstance(refusal.value, ValueError)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_draft_that_does_not_fit(tiny_model: TinyModel, opened: Open) -> None:
    with pytest.raises(InputError, match="does not fit the target"):
        opened(draft=tiny_model("qwen3"))


def test_a_grammar_with_a_fault(split: Llama) -> None:
    grammar = llama_cpp.LlamaGrammar.from_string("root ::= nothing", verbose=False)
    with pytest.raises(InputError, match="the rule 'nothing' is not defined"):
        split(PROMPT, grammar=grammar)
    assert take(split, tokens_of(split), 2)


def test_a_prompt_of_one_token_more_is_no_continuation(opened: Open) -> None:
    """The record is of the prompt that was evaluated, also if it is one token longer than the last."""
    llm = opened(n_ctx=512)
    one = tokens_of(llm, "class Stack:\n    def push(self, item):\n")
    other = (tokens_of(llm, "class Stack:\n") + tokens_of(llm, "x = 1\ny = 2\n" * 9))[: len(one) + 1]
    assert len(other) == len(one) + 1

    def top(tokens: list[int]) -> Any:
        return llm.create_completion(tokens, max_tokens=1, temperature=0, logprobs=1)["choices"][0]

    first = top(one)
    assert top(other) != first
    assert held(llm)[: len(other)] == other
    assert top(one) == first


def test_a_window_that_came_back_goes_to_llama_cpps_own_loop(tiny_model: TinyModel, opened: Open) -> None:
    """Only a conversation's window comes back from host memory. llama_cpp's loop cannot go back there."""
    size = {**EXACT, "n_ctx": 1024, "n_batch": 64, "n_ubatch": 64, "swa_full": False, "device": "simulated"}
    path = tiny_model("step35", n_swa=16)
    rng = np.random.default_rng(1)
    one, other = (rng.integers(3, 250, 200).tolist() for _ in range(2))
    processor = llama_cpp.LogitsProcessorList([lambda _ids, scores: scores])
    edited = [*one[:150], 7, 8, 9]
    expected = take(opened(path, **size), edited, 24, logits_processor=processor)
    llm = opened(path, **size)
    for tokens in (one, other, one):
        take(llm, tokens, 4)
    assert llm.stats.cached_tokens > len(one) - 16
    assert take(llm, edited, 24, logits_processor=processor) == expected


def test_an_emptied_context_has_scores_to_show(split: Llama) -> None:
    """llama_cpp shows a criterion the last row after an answer, also where the memory could not go back."""
    split.reset()
    assert split._scores[-1, :].shape == (split.n_vocab(),)
