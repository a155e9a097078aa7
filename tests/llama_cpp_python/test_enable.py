"""`spac.enable()` and `spac.disable()` work within one process."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import spac
from spac.config import Slots
from spac.errors import InputError
from spac.llama_cpp_python.llama import Llama
from tests.conftest import TinyModel
from tests.llama_cpp_python.conftest import SMALL, TARGET

# isort: split
import llama_cpp
from llama_cpp import Llama as Imported

PLAIN_INIT = llama_cpp.Llama.__init__


@pytest.fixture(autouse=True)
def disabled() -> Iterator[None]:
    yield
    spac.disable()


def text_of(llm: Any) -> str:
    return str(llm("def ", max_tokens=6, temperature=0)["choices"][0]["text"])


def test_on_and_off() -> None:
    before = Imported(str(TARGET), **SMALL)
    spac.enable(slots="20%", draft_type="ngram-simple", draft_length=3)
    enabled = Imported(str(TARGET), **SMALL)
    assert type(enabled) is Llama
    assert enabled.engine.config.slots == Slots(share=0.2)
    spac.enable(slots=7)
    again = Imported(str(TARGET), **SMALL)
    assert again.engine.config.slots == Slots(count=7)
    assert again.engine.config.draft_types == ()
    own = Imported(str(TARGET), slots=5, **SMALL)
    assert own.engine.config.slots == Slots(count=5)
    spac.disable()
    after = Imported(str(TARGET), **SMALL)
    assert type(before) is type(after) is llama_cpp.Llama
    assert llama_cpp.Llama.__init__ is PLAIN_INIT
    assert len({text_of(llm) for llm in (before, enabled, again, own, after)}) == 1
    for llm in (before, enabled, again, own, after):
        llm.close()


class Derived(llama_cpp.Llama):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.started = True

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        return list(super().tokenize(text.replace(b"DEF", b"def"), add_bos, special))


class Explicit(llama_cpp.Llama):  # type: ignore[misc]
    def __init__(self, *args: Any, **options: Any) -> None:
        llama_cpp.Llama.__init__(self, *args, **options)


@pytest.mark.parametrize("kind", [Derived, Explicit])
def test_an_apps_own_class(kind: type[Any]) -> None:
    expected = text_of(Imported(str(TARGET), **SMALL))
    spac.enable(slots=9)
    llm = kind(str(TARGET), **SMALL)
    assert isinstance(llm, kind)
    assert isinstance(llm, Llama)
    assert llm.engine is not None
    assert text_of(llm) == expected
    if kind is Derived:
        assert llm.started
        assert llm("DEF ", max_tokens=6, temperature=0)["choices"][0]["text"] == expected
    llm.close()


def test_models_without_experts_stay_plain(tiny_model: TinyModel) -> None:
    spac.enable(draft_type="ngram-simple")
    llm = Imported(str(tiny_model("qwen3")), **SMALL)
    assert type(llm) is llama_cpp.Llama
    llm.close()
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


def test_langchains_defaults() -> None:
    """`LlamaCpp` and `ChatLlamaCpp` give a batch of 8, which a draft of the default length does not fit."""
    spac.enable(draft=TARGET.with_name("draft.gguf"), slots="20%")
    llm = Imported(str(TARGET), **OF_LANGCHAINS_TEXT)
    given: dict[str, Any] = {"max_tokens": 12, "repeat_penalty": 1.1, "top_k": 40, "stop": []}
    more: dict[str, Any] = {"suffix": None, "logprobs": None, "echo": False, "stream": True}
    assert "".join(part["choices"][0]["text"] for part in llm("def f(" * 9, **given, **more))
    message = {"role": "user", "content": "hello"}
    assert llm.create_chat_completion(messages=[message], **given)["choices"][0]["message"]["content"]
    assert llm.engine.config.longest_draft == 7
    assert llm.stats.draft_lengths
    llm.close()


def test_langchains_embeddings() -> None:
    texts = ["a", "b c"]
    plain = Imported(str(TARGET), **OF_LANGCHAINS_EMBEDDINGS | {"device": "cpu"})
    spac.enable(device="simulated", draft=TARGET.with_name("draft.gguf"), slots="20%")
    llm = Imported(str(TARGET), **OF_LANGCHAINS_EMBEDDINGS)
    assert llm.engine.device.name == "simulated"
    expected, found = (
        np.array([np.mean(each["embedding"], axis=0) for each in model.create_embedding(texts)["data"]])
        for model in (plain, llm)
    )
    assert np.allclose(found, expected, atol=0.05)
    assert llm.embed("a")
    plain.close()
    llm.close()


def test_a_draft_length_that_is_given_is_not_shortened() -> None:
    spac.enable(draft=TARGET.with_name("draft.gguf"), draft_max=12)
    with pytest.raises(InputError, match="a step has up to 13 tokens, and a batch 8"):
        Imported(str(TARGET), **OF_LANGCHAINS_TEXT)


def test_unknown_arguments_are_refused() -> None:
    spac.enable()
    with pytest.raises(InputError, match=r"Llama\(\) has no 'x'; beside llama_cpp's, it has draft, "):
        Imported(str(TARGET), x=1, **SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slot": 3}, "enable() has no 'slot'; it knows: draft, "),
        ({"slots": "-3"}, "slots: the count -3 is negative"),
        ({"scheduler": "fifo"}, "unknown scheduler 'fifo'"),
        ({"draft_length": 1000}, "draft_length must be 0 to 63"),
    ],
)
def test_refused_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        spac.enable(**options)
    assert message in str(refusal.value)
    assert llama_cpp.Llama.__init__ is PLAIN_INIT
