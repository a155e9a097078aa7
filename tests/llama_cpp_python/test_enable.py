"""`spac.enable()` and `spac.disable()` work within one process."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

import spac
from spac.config import Slots
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.llama_cpp_python.conftest import SMALL, TARGET

# isort: split
import llama_cpp
from llama_cpp import Llama as Imported

PLAIN_INIT = llama_cpp.Llama.__init__


@pytest.fixture(autouse=True)
def disabled():
    yield
    spac.disable()


def text_of(llm: Any) -> str:
    return str(llm("def ", max_tokens=6, temperature=0)["choices"][0]["text"])


def test_on_and_off():
    made = [Imported(str(TARGET), **SMALL)]
    for options, own, slots in (
        ({"slots": "20%", "draft_type": "ngram-simple", "draft_length": 3}, {}, Slots(share=0.2)),
        ({"slots": 7}, {}, Slots(count=7)), ({"slots": 7}, {"slots": 5}, Slots(count=5)),
    ):  # fmt: skip
        spac.enable(**options)
        made.append(Imported(str(TARGET), **own, **SMALL))
        assert type(made[-1]) is Llama
        assert made[-1].engine.config.slots == slots
        assert bool(made[-1].engine.config.draft_types) == ("draft_type" in options)
    spac.disable()
    made.append(Imported(str(TARGET), **SMALL))
    assert type(made[0]) is type(made[-1]) is llama_cpp.Llama
    assert llama_cpp.Llama.__init__ is PLAIN_INIT
    assert len({text_of(llm) for llm in made}) == 1
    for llm in made:
        llm.close()


class Derived(llama_cpp.Llama):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.started = True

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        return list(super().tokenize(text.replace(b"DEF", b"def"), add_bos, special))


class Explicit(llama_cpp.Llama):
    def __init__(self, *args: Any, **options: Any) -> None:
        llama_cpp.Llama.__init__(self, *args, **options)


@pytest.mark.parametrize("kind", [Derived, Explicit])
def test_an_apps_own_class(kind):
    with closing(Imported(str(TARGET), **SMALL)) as plain:
        expected = text_of(plain)
    spac.enable(slots=9)
    with closing(kind(str(TARGET), **SMALL)) as llm:
        assert isinstance(llm, kind)
        assert isinstance(llm, Llama)
        assert llm.engine is not None
        assert text_of(llm) == expected
        if kind is Derived:
            assert llm.started
            assert llm("DEF ", max_tokens=6, temperature=0)["choices"][0]["text"] == expected


def test_models_without_experts_stay_plain(tiny_model):
    spac.enable(draft_type="ngram-simple")
    with closing(Imported(str(tiny_model("qwen3")), **SMALL)) as llm:
        assert type(llm) is llama_cpp.Llama
    with pytest.raises(ValueError, match="Model path does not exist"):  # the message is llama_cpp's own
        Imported(str(TARGET.with_name("missing.gguf")), **SMALL)


OF_LANGCHAIN: dict[str, Any] = {
    "n_ctx": 512, "n_parts": -1, "seed": -1, "logits_all": False, "vocab_only": False, "use_mlock": False,
    "n_threads": None, "verbose": False,
}  # fmt: skip
"""The arguments that LangChain's classes give `llama_cpp.Llama` by default."""
OF_LANGCHAINS_TEXT: dict[str, Any] = {
    **OF_LANGCHAIN, "rope_freq_scale": 1.0, "rope_freq_base": 10000.0, "lora_path": None, "lora_base": None,
    "f16_kv": True, "n_batch": 8, "use_mmap": True, "last_n_tokens_size": 64,
}  # fmt: skip
OF_LANGCHAINS_EMBEDDINGS: dict[str, Any] = {
    **OF_LANGCHAIN, "embedding": True, "f16_kv": False, "n_batch": 512, "device": None,
}  # fmt: skip


def test_langchains_defaults():
    """`LlamaCpp` and `ChatLlamaCpp` give a batch of 8, which a draft of the default length does not fit."""
    spac.enable(draft=TARGET.with_name("draft.gguf"), slots="20%")
    given: dict[str, Any] = {"max_tokens": 12, "repeat_penalty": 1.1, "top_k": 40, "stop": []}
    more: dict[str, Any] = {"suffix": None, "logprobs": None, "echo": False, "stream": True}
    messages = [{"role": "user", "content": "hello"}]
    with closing(Imported(str(TARGET), **OF_LANGCHAINS_TEXT)) as llm:
        assert "".join(part["choices"][0]["text"] for part in llm("def f(" * 9, **given, **more))
        assert llm.create_chat_completion(messages=messages, **given)["choices"][0]["message"]["content"]
        assert llm.engine.config.longest_draft == 7
        assert llm.stats.draft_lengths
    spac.enable(draft=TARGET.with_name("draft.gguf"), draft_max=12)  # a length that is given is not shortened
    with pytest.raises(InputError, match="a step has up to 13 tokens, and a batch 8"):
        Imported(str(TARGET), **OF_LANGCHAINS_TEXT)


def test_langchains_embeddings():
    texts = ["a", "b c"]
    plain = Imported(str(TARGET), **OF_LANGCHAINS_EMBEDDINGS | {"device": "cpu"})
    spac.enable(device="simulated", draft=TARGET.with_name("draft.gguf"), slots="20%")
    llm = Imported(str(TARGET), **OF_LANGCHAINS_EMBEDDINGS)
    with closing(plain), closing(llm):
        assert llm.engine.device.name == "simulated"
        expected, found = (
            np.array([np.mean(each["embedding"], axis=0) for each in model.create_embedding(texts)["data"]])
            for model in (plain, llm)
        )
        assert np.allclose(found, expected, atol=0.05)
        assert llm.embed("a")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slot": 3}, "enable() has no 'slot'; it knows: draft, "),
        ({"slots": "-3"}, "slots: the count -3 is negative"),
        ({"scheduler": "fifo"}, "unknown scheduler 'fifo'"),
        ({"draft_length": 1000}, "draft_length must be 0 to 63"),
    ],
)  # fmt: skip
def test_refused_options(options, message):
    with pytest.raises(InputError) as refusal:
        spac.enable(**options)
    assert message in str(refusal.value)
    assert llama_cpp.Llama.__init__ is PLAIN_INIT
    spac.enable()
    with pytest.raises(InputError, match=r"Llama\(\) has no 'x'; beside llama_cpp's, it has draft, "):
        Imported(str(TARGET), x=1, **SMALL)
