"""The check refuses what llama.cpp's parser refuses, and what has a fault of the check's own list."""

from __future__ import annotations

import random
from pathlib import Path

from spac import _core, demo
from spac.errors import InputError
from tests.session.lab import Lab, asked

REFERENCE = """
import json, sys
import llama_cpp

given = json.load(sys.stdin)
model = llama_cpp.Llama(given["model"], vocab_only=True, verbose=False)
vocab = llama_cpp.llama_model_get_vocab(model.model)
results = []
for text in given["texts"]:
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, text.encode(), b"root")
    results.append(bool(sampler))
    if sampler:
        llama_cpp.llama_sampler_free(sampler)
print(json.dumps(results))
"""

OURS = ("ends before it begins", "exceeds its largest", "beyond Unicode", "is not a token", "limit")
"""Parts of the check's own refusals. llama.cpp accepts these grammars, or does not survive them."""

PIECES = [
    "(", ")", "(", ")", "|", "|", " ", " ", "\n",
    '"a"', '"b"', '"\\n"', '"\\x41"', '"é"', '"\\u00e9"', '"\\q"', '"', "[a-z]",
    "[^a]", "[z-a]", "[]", "[-a]", "[a-]", "[\\]]", "[", "]", ".", "*", "+", "?", "{2}", "{1,3}", "{,3}",
    "{3,1}", "{0,0}", "{2,}",
    "{ 1 , 2 }", "{", "}", "x", "y", "root", "x ::= ",
    "\ny ::= ", "\nx ::= ", "\nroot ::= ",
    "<[5]>", "!<[5]>", "<[9999999]>", "<a>", "# (\n", "::=", "\r\n", "\t", "-", "_",
]  # fmt: skip


GOOD = ['"a"', '"\\n"', '"\\x41é"', "[a-z]", "[^\\]a-]", ".", "x", "y", "<[5]>", "!<[5]>"]
REPEATED = ["", "", "", "*", "+", "?", "{2}", "{1,3}", "{2,}", "{0,0}"]


def expression(choose: random.Random, depth: int = 3) -> str:
    parts = []
    for _ in range(choose.randint(1, 3)):
        grouped = depth and choose.random() < 0.4
        part = f"({expression(choose, depth - 1)})" if grouped else choose.choice(GOOD)
        parts.append(part + choose.choice(REPEATED))
    return choose.choice([" ", " | "]).join(parts)


def grammars(n: int) -> list[str]:
    """Return grammars of random pieces, every other one with whole expressions."""
    choose = random.Random(41)
    made = []
    for i in range(n):
        pieces = choose.choices(PIECES, k=choose.randint(0 if i % 2 else 1, 4))
        if i % 2:
            pieces = [expression(choose), *choose.choices(["", "".join(pieces)], [3, 1])]
        ends = '\nx ::= "x"\ny ::= [0-9]+ x?\n' if choose.random() < 0.9 else ""
        made.append(f"root ::= {''.join(pieces)}{ends}")
    return made


def refusal(model: int, text: str) -> str:
    try:
        _core.check_grammar(model, text)
    except InputError as error:
        return str(error)
    return ""


def test_the_check_agrees_with_the_parser(lab: Lab, reference_lib: Path) -> None:
    model = lab.model(demo.TARGET)
    said = {text: refusal(model, text) for text in grammars(4_000)}
    texts = [text for text, fault in said.items() if not any(own in fault for own in OURS)]
    accepted = asked(REFERENCE, {"model": str(demo.TARGET), "texts": texts}, reference_lib)
    differ = [text for text, good in zip(texts, accepted, strict=True) if good == bool(said[text])]
    assert {text: said[text] for text in differ} == {}
    assert 500 < sum(accepted) < len(texts) - 500


def test_the_last_numbers_within_the_limits_are_accepted(lab: Lab) -> None:
    model = lab.model(demo.TARGET)
    shapes = {
        "500 nested groups": (499, lambda n: f'root ::= {"(" * n}"a"{")" * n}'),
        "2000 repetitions": (2_000, lambda n: f'root ::= "a"{{{n}}}'),
    }
    for limit, (most, grammar) in shapes.items():
        assert refusal(model, grammar(most)) == ""
        assert f"exceeds the limit of {limit}" in refusal(model, grammar(most + 1))
