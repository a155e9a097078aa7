"""`spac.Llama` keeps its state as llama_cpp's class promises while llama.cpp's loop generates."""

from __future__ import annotations

import itertools
import pickle
import re
from contextlib import closing
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
from tests.llama_cpp_python.conftest import DRAFT, EXACT, TARGET

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


def test_the_split_and_the_draft_are_at_work(split):
    assert spac.Llama is Llama
    with pytest.raises(AttributeError, match="module 'spac' has no attribute 'Lama'"):
        _ = spac.Lama
    split.reset()
    take(split, tokens_of(split), 20)
    stats = split.stats
    assert (stats.device, stats.generated_tokens) == ("simulated", 20)
    assert stats.drafted_tokens > stats.accepted_tokens > 0
    assert min(stats.activations, stats.uploads) > 0


@pytest.mark.parametrize("options", [{"device": "simulated"}, {"device": "cpu"}, {"vocab_only": True}])
def test_statistics_before_the_first_call(opened, options):
    stats = opened(**options).stats
    assert (stats.generated_tokens, stats.prompt_tokens, stats.reason) == (0, 0, "")
    assert stats.device == options.get("device", "cpu")
    assert " 0 tokens" in stats.table()


@settings(max_examples=15)
@given(
    n_first=st.integers(1, 12), n_second=st.integers(1, 12), cut=st.integers(1, 16),
    tail=st.lists(st.integers(0, 255), max_size=4),
)  # fmt: skip
def test_bookkeeping(split, plain, n_first, n_second, cut, tail):
    """`n_tokens` and `input_ids` are those that llama_cpp's loop leaves, after any generation, read or not.
    The context really holds these tokens: the next call gives the same tokens as there."""
    second, found = [*tokens_of(plain), 100, 200][:cut] + tail, []
    for llm in (split, plain):
        llm.reset()
        found.append((take(llm, tokens_of(llm), n_first), held(llm)))
        found[-1] += (take(llm, second, n_second), held(llm), next_token(llm, 77))
    assert found[0] == found[1]


def test_state_after_a_generation_of_the_loop(split, tiny_model, opened):
    """A prompt that is there is not evaluated again."""
    split.reset()
    tokens = take(split, tokens_of(split), 6)
    state, before = split.save_state(), held(split)
    expected = take(split, [*before, 9], 6)
    assert 0 < split.stats.prefilled_tokens < 4
    take(split, tokens_of(split, "something else"), 5)
    for llm in (split, opened(tiny_model("qwen3moe"), **EXACT)):
        llm.load_state(state)
        assert held(llm) == before == tokens_of(split) + tokens[:-1]
        assert take(llm, [*before, 9], 6) == expected


def test_a_recurrent_state_is_not_taken_back_too_far(tiny_model, opened):
    """The memory keeps its last few states to rewind to. A saved state does not have them."""
    fresh, loaded = (opened(tiny_model("lfm2moe"), draft_type="ngram-simple", draft_length=4) for _ in "12")
    tokens = tokens_of(fresh)
    expected = take(fresh, tokens, 6)
    fresh.reset()
    fresh.eval(tokens)
    loaded.load_state(fresh.save_state())
    assert take(loaded, tokens, 6) == expected


def test_ram_cache(split, tiny_model, opened):
    """The loop has a cache of its own, and keeps what it has."""
    cache = llama_cpp.LlamaRAMCache()
    asked = {"max_tokens": 6, "temperature": 0}
    split.reset()
    split.set_cache(cache)
    text = split(PROMPT, **asked)["choices"][0]["text"]
    split.set_cache(None)
    [state] = cache.cache_state.values()
    assert state.llama_state == b""
    assert 0 < state.llama_state_size < 2048
    other = opened(tiny_model("qwen3moe"), **EXACT)
    other.set_cache(cache)
    for prompt in (PROMPT, "A text of its own", PROMPT):
        again = other(prompt, **asked)["choices"][0]["text"]
    assert again == text
    assert other.stats.cached_tokens == len(tokens_of(other)) - 1


def test_without_reset_tokens_are_appended(split, plain):
    found = []
    for llm in (split, plain):
        llm.reset()
        take(llm, tokens_of(llm), 3)
        found.append((take(llm, [40, 50], 5, reset=False), held(llm)))
    assert found[0] == found[1]


def test_tokens_may_be_sent(split):
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


def test_interrupted_by_another_generation(split, plain):
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


def test_context_full(split):
    split.reset()
    tokens = tokens_of(split) * 8
    assert len(tokens) < split.n_ctx()
    made = list(split.generate(tokens, **GREEDY))
    assert len(made) == split.n_ctx() - len(tokens)
    assert split.stats.reason == "length"
    with pytest.raises(ValueError, match="exceed context window"):
        split.create_completion(tokens * 3)


def test_stopping_criteria_and_exceptions(split, plain):
    n, Criteria = len(tokens_of(split)), llama_cpp.StoppingCriteriaList
    limit, fail = Criteria([lambda ids, _logits: len(ids) > n + 5]), Criteria([lambda *_: 1 / 0])
    found = []
    for llm in (split, plain):
        llm.reset()
        made = take(llm, tokens_of(llm), 100, stopping_criteria=limit)
        with pytest.raises(ZeroDivisionError):
            take(llm, tokens_of(llm), 3, stopping_criteria=fail)
        found.append((made, held(llm)))
    assert found[0] == found[1]
    assert len(found[0][0]) == 6
    assert take(split, tokens_of(split), 3) == found[0][0][:3]


SAMPLING: dict[str, dict[str, Any]] = {
    "temperature": {"temp": 0.8},
    "wide": {"temp": 1.4, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 0.7},
    "narrow": {"temp": 1.4, "top_k": 5, "top_p": 0.7, "min_p": 0.2}, "none": {"temp": -1.0},
    "out of range": {"temp": 1.0, "top_k": -1, "top_p": 1.5, "min_p": -1.0},
    "repeat": {"temp": 0.9, "repeat_penalty": 1.4}, "frequency": {"temp": 0.0, "frequency_penalty": 0.8},
    "presence": {"temp": 0.0, "presence_penalty": 1.5},
    "mirostat 1": {"temp": 0.3, "mirostat_mode": 1, "mirostat_tau": 3.0},
    "mirostat 2": {"temp": 0.8, "mirostat_mode": 2, "mirostat_eta": 0.3},
    "mirostat with penalties": {"temp": 0.8, "mirostat_mode": 2, "repeat_penalty": 1.4},
}  # fmt: skip


@pytest.mark.parametrize("options", SAMPLING.values(), ids=SAMPLING)
def test_sampling_is_llama_cpps(split, plain, options):
    """The same seed gives the same tokens. The chain of samplers is the same and draws as often."""
    found: dict[int, list] = {11: [], 12: []}
    for llm in (split, plain):
        llm.reset()
        for seed, made in found.items():
            llm.set_seed(seed)
            made.append(take(llm, tokens_of(llm), 16, **options))
    assert isinstance(split._run, TokenRun), "llama.cpp's loop generates"
    assert all(ours == theirs for ours, theirs in found.values())
    assert options["temp"] == 0 or found[11] != found[12]


def test_a_grammar_may_have_another_root(split):
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


def test_random_seed(split):
    split.set_seed(-1)
    texts = {tuple(take(split, tokens_of(split), 12, temp=1.0)) for _ in range(4)}
    assert len(texts) > 1


def test_logit_bias_and_processors(split, plain, caplog):
    def forbid(_ids: object, scores: Any) -> Any:
        scores[:60] = -np.inf
        return scores

    def ask(**more: Any) -> Any:
        ours, theirs = (llm(PROMPT, max_tokens=6, temperature=0, **more)["choices"] for llm in (split, plain))
        assert ours == theirs
        return ours

    split._said.clear()
    biased = ask(logit_bias={65: 90.0})
    assert isinstance(split._run, TokenRun)  # llama.cpp's loop generates
    assert not caplog.messages
    processors = llama_cpp.LogitsProcessorList([forbid])
    for _ in range(2):
        ask(logits_processor=processors)
        assert isinstance(split._run, LoopRun)
    line = "a logits_processor: such calls run on llama_cpp's own loop, without speculation"
    assert caplog.messages == [line]
    assert ask(logit_bias={65: 90.0}, logits_processor=processors) == biased


def test_what_llama_cpp_evaluates_is_demand(opened):
    """llama_cpp's own loop runs on the split too, and the scheduler sees its demand, but for prompts."""
    llm = opened(device="stand-in", slots="25%", logits_all=True)  # the device's former name
    assert llm.engine.config.device == llm.engine.device.name == "simulated"
    llm.eval(tokens_of(llm))
    assert llm.engine.experts.stats["activations"] == 0
    llm.reset()
    take(llm, tokens_of(llm), 8)
    assert llm.engine.experts.slots.n_resident > 0
    stats = llm.stats
    assert (stats.prefilled_tokens, stats.generated_tokens, stats.steps) == (len(tokens_of(llm)), 8, 7)
    assert stats.tokens_per_second
    assert stats.activations == 7 * sum(layer.n_used for layer in llm.engine.experts.layers)
    assert len(llm._scores) == llm.n_tokens
    assert np.isfinite(llm._scores).all()


def test_models_do_not_disturb_each_other(tiny_model, opened):
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


def test_without_experts_it_is_plain_llama_cpp(tiny_model, opened):
    """A draft works there too."""
    llm = opened(tiny_model("qwen3"))
    assert (llm.engine, llm.notes) == (None, [])
    made = take(llm, tokens_of(llm), 12)
    assert (llm.stats.device, llm.stats.generated_tokens, llm.stats.hit_rate) == ("cpu", 12, None)
    drafted = opened(tiny_model("qwen3"), draft=tiny_model("qwen3"), draft_length=3)
    assert take(drafted, tokens_of(llm), 12) == made
    assert drafted.stats.accepted_tokens > 4


def test_pickled_and_closed(opened):
    llm = opened(draft_type="ngram-simple", draft_length=3, slots=9)
    expected = take(llm, tokens_of(llm), 5)
    with closing(pickle.loads(pickle.dumps(llm))) as twin:
        assert twin.engine.config.slots == Slots(count=9)
        assert take(twin, tokens_of(llm), 5) == expected
    twin.close()
    assert twin.ctx is None
    for use in (lambda: twin("a"), lambda: next(twin.generate([1])), lambda: twin.eval([1]), twin.save_state,
                twin.sample, lambda: twin.embed("a"), lambda: twin.detokenize([1])):  # fmt: skip
        with pytest.raises(InputError, match="the model is closed"):
            use()


MISSING = TARGET.with_name("missing.gguf")
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"path": MISSING}, "missing.gguf: there is no such file"),
    ({"path": TARGET.with_name("MODEL_CARD.md")}, "this is not a GGUF file"),
    ({"draft": "missing.gguf"}, "missing.gguf: there is no such file"), ({"slots": "many"}, "slots: must be"),
    ({"scheduler": "fifo"}, "unknown scheduler 'fifo'"), ({"device": "cuda7"}, "unknown device 'cuda7'"),
    ({"n_ctx": -1}, "ctx must be 0 to"), ({"drafts": "x"}, "Llama() has no 'drafts'; did you mean 'draft'?"),
    ({"type_k": 99}, "could not make a context: "),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_refusals(opened, options, message):
    with pytest.raises(InputError) as refusal:
        opened(**options)
    assert isinstance(refusal.value, ValueError)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_grammar_with_a_fault(split):
    grammar = llama_cpp.LlamaGrammar.from_string("root ::= nothing", verbose=False)
    with pytest.raises(InputError, match="the rule 'nothing' is not defined"):
        split(PROMPT, grammar=grammar)
    assert take(split, tokens_of(split), 2)


def test_a_prompt_of_one_token_more_is_no_continuation(opened):
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


def test_a_window_that_came_back_goes_to_llama_cpps_own_loop(tiny_model, opened):
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


def test_an_emptied_context_has_scores_to_show(split):
    """llama_cpp shows a criterion the last row after an answer, also where the memory could not go back."""
    split.reset()
    assert split._scores[-1, :].shape == (split.n_vocab(),)
