"""These tests cover llama.cpp's sampling settings that are not numbers: samplers by name, biases, grammars
from files and schemas."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.config.sampling import SAMPLERS, sampler_names, sampler_sequence
from spac.engine import Engine
from spac.errors import InputError
from spac.model.gguf.header import read_header
from spac.run import unescaped

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "kind": {"enum": ["tree", "stone"]},
        "sizes": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    },
    "required": ["name", "kind", "sizes"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(EngineConfig(demo.TARGET, device="cpu", threads=1, ctx=512)) as engine:
        yield engine


def text(engine: Engine, n: int = 24, **sampling: Any) -> str:
    return "".join(engine.generate(demo.PROMPT, n, sampling=SamplingConfig(**{"seed": 1, **sampling})))


def test_what_follows_a_schema_fits_it(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text(json.dumps(SCHEMA))
    found = set()
    for way in ({"json_schema": SCHEMA}, {"json_schema": json.dumps(SCHEMA)}, {"json_schema_file": path}):
        said = text(engine, 200, temp=0.0, **way)
        value = json.loads(said)
        assert set(value) == {"name", "kind", "sizes"}
        assert len(value["name"]) <= 8
        assert value["kind"] in ("tree", "stone")
        assert 2 <= len(value["sizes"]) <= 3
        assert all(isinstance(each, bool) for each in value["sizes"])
        found.add(said)
    assert len(found) == 1


def test_a_grammar_s_file_is_the_grammar(tmp_path: Path) -> None:
    path = tmp_path / "list.gbnf"
    path.write_text('root ::= ("ab" | "c")+ "!"')
    assert SamplingConfig(grammar_file=path) == SamplingConfig(grammar=path.read_text())


def test_a_written_grammar_stays_when_settings_change() -> None:
    sampling = SamplingConfig(json_schema={"type": "integer"})
    assert "integral-part" in sampling.grammar
    assert replace(sampling, seed=3) == replace(SamplingConfig(grammar=sampling.grammar), seed=3)
    assert SamplingConfig.from_mapping({"json_schema": "{}"}).grammar


def test_samplers_are_those_named(engine: Engine) -> None:
    greedy = text(engine, temp=0.0)
    hot = {"temp": 5.0, "top_k": 1, "min_p": 0.0}
    assert text(engine, **hot) == greedy
    assert text(engine, samplers="temperature;top_k", **hot) == greedy
    assert text(engine, samplers=["temperature"], **hot) != greedy


def test_a_bias_decides(engine: Engine) -> None:
    [token] = engine.tokenize("x")[-1:]
    assert text(engine, 5, temp=0.0, logit_bias={int(token): 1000.0}) == "xxxxx"


def test_a_bias_forbids_a_token(engine: Engine) -> None:
    def tokens(**sampling: Any) -> list[int]:
        generation = engine.generate(demo.PROMPT, 40, sampling=SamplingConfig(temp=0.0, **sampling))
        assert "".join(generation)
        return generation.tokens

    first = tokens()[0]
    assert first not in tokens(logit_bias={first: -math.inf})


@pytest.mark.parametrize("ways", [{"temp": 1.0, "top_k": 1}, {"temp": 0.0, "top_p": 0.5}])
def test_a_greedy_choice_is_that_of_the_chain(engine: Engine, ways: dict[str, Any]) -> None:
    chain = {"logit_bias": {0: 0.0}}  # A bias changes nothing here, but has a member in the chain.
    assert text(engine, 40, **ways) == text(engine, 40, **ways, **chain)


@pytest.mark.parametrize("top_k", [1, 40])
def test_the_chain_chooses_between_equal_logits(tmp_path: Path, top_k: int) -> None:
    path = tmp_path / "flat.gguf"
    header = read_header(demo.TARGET)
    [output] = [each for each in header.tensors if each.name == "output.weight"]
    content = bytearray(demo.TARGET.read_bytes())
    begin = header.data_offset + output.offset
    content[begin : begin + output.n_bytes] = bytes(output.n_bytes)
    path.write_bytes(content)
    found = []
    with Engine(EngineConfig(path, device="cpu", threads=1, ctx=128)) as flat:
        for chain in ({}, {"logit_bias": {5: 0.0}}):
            sampling = SamplingConfig(temp=0.0, top_k=top_k, seed=1, **chain)
            generation = flat.generate(demo.PROMPT, 4, sampling=sampling)
            "".join(generation)
            found.append((generation.tokens, generation.reason))
    assert found[0] == found[1]


@given(names=st.lists(st.sampled_from(sorted(SAMPLERS)), max_size=9))
def test_names_and_letters_of_samplers(names: list[str]) -> None:
    assert sampler_names(";".join(names) if names else []) == tuple(names)
    assert sampler_sequence("".join(SAMPLERS[name] for name in names)) == tuple(names)
    written = [name.replace("_", "-").upper() for name in names]
    assert sampler_names(written) == tuple(names)


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"samplers": "top_k;guess"}, "'guess' is not one of penalties"),
        ({"logit_bias": {-1: 1.0}}, "-1 is not the number of a token"),
        ({"logit_bias": {3: math.nan}}, "the bias of token 3 must be a number"),
        ({"logit_bias": {3: 1e9}}, "more than 1000000"),
        ({"grammar": "root ::= [0-9]", "grammar_file": "x"}, "grammar and grammar_file both"),
        ({"json_schema": "{}", "json_schema_file": "x"}, "json_schema and json_schema_file both"),
        ({"json_schema": "{"}, "is not valid JSON"),
        ({"json_schema": "[1]"}, "is not an object"),
        ({"json_schema": {"$ref": "#/nowhere"}}, "cannot be made a grammar"),
        ({"json_schema": {"items": [{"$ref": "https://a/b"}]}}, "'https://a/b' does not begin with #/"),
        ({"json_schema_file": "nowhere"}, "nowhere: the JSON schema cannot be read"),
        ({"grammar_file": "nowhere"}, "nowhere: the grammar cannot be read"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], fault: str) -> None:
    with pytest.raises(InputError, match=fault) as refused:
        SamplingConfig(**settings)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "meant"),
    [(r"a\n\t\r", "a\n\t\r"), (r"\"\'\\", "\"'\\"), (r"\x41\x4", r"A\x4"), (r"\q\\", r"\q" "\\"),
     (r"\xc3\xa9 \xe9", "é \udce9"), ("\\", "\\")],
)  # fmt: skip
def test_escapes(text: str, meant: str) -> None:
    """Bytes that form a character together become that character."""
    assert unescaped(text) == meant
