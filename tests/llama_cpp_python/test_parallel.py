"""`spac.Llama` used by several threads at once, as LangChain's `batch` uses it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spac import Llama, demo
from spac.errors import InputError
from tests import exact

# isort: split
import llama_cpp  # this import must follow spac's, because spac decides on the library

TEXTS = ["def fibonacci(n):", "The sea is", "import os\n", "class Tree:\n    def", "1, 2, 3,"]


class Near(float):
    """A number that equals those near to it: what a batch has beside a sequence changes its rounding."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and abs(float(self) - float(other)) < 0.05

    __hash__ = float.__hash__


@pytest.fixture(scope="module")
def llama():
    """Return a model of three generations at once. It rounds so little that texts stay as if alone."""
    made = Llama(
        str(exact.target()), parallel=3, device="simulated", slots=0, state="off", n_ctx=512,
        n_threads=1, draft=str(demo.DRAFT), draft_length=4, type_k=0, type_v=0, flash_attn=False,
        verbose=False,
    )  # fmt: skip
    yield made
    made.close()


def plain(llama: Llama, text: str) -> Any:
    made = llama(text, max_tokens=20, temperature=0.0)
    return made["choices"][0]["text"], llama.stats.generated_tokens


def seeded(llama: Llama, text: str) -> Any:
    return llama(text, max_tokens=20, temperature=1.0, seed=len(text))["choices"][0]["text"]


def streamed(llama: Llama, text: str) -> Any:
    chunks = llama.create_completion(text, max_tokens=20, temperature=0.0, stream=True)
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)


def probable(llama: Llama, text: str) -> Any:
    found = llama(text, max_tokens=8, temperature=0.0, logprobs=2)["choices"][0]["logprobs"]
    found["token_logprobs"] = [Near(each) for each in found["token_logprobs"]]
    found["top_logprobs"] = [
        {name: Near(each) for name, each in top.items()} for top in found["top_logprobs"]
    ]
    return found


def stopped(llama: Llama, text: str) -> Any:
    """Return a text that ends when the criteria see nine tokens behind the prompt."""
    n = len(llama.tokenize(text.encode())) + 9
    criteria = llama_cpp.StoppingCriteriaList([lambda ids, _scores: len(ids) >= n])
    return llama(text, max_tokens=20, temperature=0.0, stopping_criteria=criteria)["usage"]


@pytest.mark.parametrize("ask", [plain, seeded, streamed, probable, stopped])
def test_threads_get_what_each_gets_alone(llama, ask):
    alone = [ask(llama, text) for text in TEXTS]
    with ThreadPoolExecutor(len(TEXTS)) as pool:
        assert list(pool.map(lambda text: ask(llama, text), TEXTS)) == alone


def test_what_llama_cpp_does_on_the_context_is_refused(llama):
    with pytest.raises(InputError, match="eval: not with several generations at once"):
        llama.eval([1, 2])
    with pytest.raises(InputError, match="save_state: not with"):
        llama.save_state()
    with pytest.raises(InputError, match="reset=False continues"):
        next(llama.generate([1, 2], reset=False))
    processors = llama_cpp.LogitsProcessorList([lambda _ids, scores: scores])
    with pytest.raises(InputError, match="not with several generations at once"):
        llama("x", max_tokens=1, logits_processor=processors)
    with pytest.raises(InputError, match="the context holds 512"):
        next(llama.generate([5] * 600))
