"""The tokens that a grammar allows are those of the unpatched library, however many ways on it has."""

from __future__ import annotations

import random
from pathlib import Path

from spac import _library, demo
from tests.session.lab import asked

PROGRAM = """
import ctypes, json, random, sys
import llama_cpp
import numpy as np

given = json.load(sys.stdin)
model = llama_cpp.Llama(given["model"], vocab_only=True, verbose=False)
vocab = llama_cpp.llama_model_get_vocab(model.model)
n = llama_cpp.llama_vocab_n_tokens(vocab)
fresh = np.zeros(n, [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
fresh["id"] = np.arange(n)

def allowed(sampler):
    found = fresh.copy()
    data = found.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token_data))
    llama_cpp.llama_sampler_apply(sampler, llama_cpp.llama_token_data_array(data, n, -1, False))
    return found["id"][found["logit"] == 0].tolist()

results = []
for seed, text in enumerate(given["texts"]):
    choose = random.Random(seed)
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    for _ in range(6):
        tokens = allowed(sampler)
        results.append(tokens)
        going = [token for token in tokens if not llama_cpp.llama_vocab_is_eog(vocab, token)]
        if not going:
            break
        llama_cpp.llama_sampler_accept(sampler, choose.choice(going))
    llama_cpp.llama_sampler_free(sampler)
print(json.dumps(results))
"""
PARTS = ['"{}"', '"{}"', '"{}"', '""', "[{}]", "[^{}]", "[{}-z]", "[^ -{}]", '"{}"*', "[a-z{}é-ü]+", "."]
FIRST = [*PARTS, "<[{n}]>", "!<[{n}]>"]
"""llama.cpp allows tokens behind a part of a token and then aborts, so they begin alternatives alone."""


def grammars(n: int) -> list[str]:
    """Return grammars of up to 40 alternatives, with tokens, and with characters of several bytes."""
    choose = random.Random(7)

    def part(of: list[str]) -> str:
        return choose.choice(of).format(choose.choice("aAbez09 ,.é字€🙂"), n=choose.randrange(200))

    def grammar() -> str:
        alternatives = (f"{part(FIRST)} {part(PARTS)} {part(PARTS)}" for _ in range(choose.randint(1, 40)))
        return "root ::= " + " | ".join(alternatives)

    return [grammar() for _ in range(n)]


def allowed(library: Path) -> list[list[int]]:
    """Return the tokens that the grammars allow at each place, with this library."""
    return asked(PROGRAM, {"model": str(demo.TARGET), "texts": grammars(100)}, library)  # type: ignore[no-any-return]


def test_allowed_tokens(reference_lib: Path) -> None:
    ours, theirs = allowed(_library.library_path().parent), allowed(reference_lib)
    assert ours == theirs
    assert sum(map(bool, ours)) > 200
