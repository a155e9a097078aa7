"""A text of one long word is tokenized, though llama.cpp's regular expressions recurse once a character."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from spac import _library, demo
from tests.session.lab import asked

pytestmark = pytest.mark.nightly

PRE_TOKENIZERS = ("gpt-4o", "deepseek-v3", "bloom", "exaone-moe", "llama-bpe")
LETTERS = 60_000

PROGRAM = """
import hashlib, json, sys
import llama_cpp

given = json.load(sys.stdin)
results = {}
for pre in given["pre"]:
    model = llama_cpp.Llama(
        given["model"], vocab_only=True, verbose=False, kv_overrides={"tokenizer.ggml.pre": pre}
    )
    results[pre] = []
    for text in given["texts"]:
        tokens = model.tokenize(text.encode())
        results[pre].append([len(tokens), hashlib.sha256(str(tokens).encode()).hexdigest()])
print(json.dumps(results))
"""


def tokenized(
    library: Path, texts: list[str], pre: Sequence[str] = PRE_TOKENIZERS
) -> dict[str, list[list[object]]]:
    """Return the number and the hash of the tokens of each text, by pre-tokenizer, with this library."""
    given = {"model": str(demo.TARGET), "pre": pre, "texts": texts}
    return asked(PROGRAM, given, library)  # type: ignore[no-any-return]


OURS = _library.library_path().parent
UNITS = ["a", "A", "7", "+", " ", "\n", "é", "字", "aB", "a ", "x1/", "'s"]


def test_long_words() -> None:
    texts = [unit * LETTERS for unit in UNITS]
    for pre, results in tokenized(OURS, texts).items():
        for text, (n, _) in zip(texts, results, strict=True):
            assert isinstance(n, int), pre
            assert n > len(text) // 200, (pre, text[:3])


def test_the_tokens_are_those_of_the_unpatched_library(reference_lib: Path) -> None:
    """The texts are short, and as long as an ordinary stack holds, and as long as texts that are cut."""
    prose = "".join(f"The {i}th line, of words and (signs): it's café {i * 7919}.\n" for i in range(12_000))
    texts = [
        *(unit * n for unit in UNITS for n in (1, 7, 700, 5_000)),
        prose[:1_900], prose[:2_100], "x" * 30 + "\n" + " \n\t\n" * 700 + prose[:3_000],
    ]  # fmt: skip
    assert tokenized(OURS, texts) == tokenized(reference_lib, texts)
    assert len(prose) > 600_000
    few = PRE_TOKENIZERS[:2]
    assert tokenized(OURS, [prose], few) == tokenized(reference_lib, [prose], few)
