"""These tests run random command lines. Their options have values that fit, nearly fit, and do not fit."""

from __future__ import annotations

import argparse
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spac.run import make_parser
from tests.fuzz.driver import budget, check

pytestmark = pytest.mark.nightly

# Wrong and unusual forms of numbers.
FORMS = """0 1 2 3 -1 -2 00 +1 1.0 0.5 1e0 1e400 -0.0 nan inf -inf 2147483647 2147483648 4294967295
    18446744073709551616 -9223372036854775809 1_0 0x10 ½ １ one 1,5 -- - % 50% 101% -5% auto None"""
NUMBERS = st.sampled_from([*FORMS.split(), "", " ", "1 "])
NAMES = """none lru static text json cpu simulated auto SPAC0 CUDA0 x draft-simple ngram-simple ngram-mod
    draft-mtp,ngram-simple draft-eagle3 ,"""
WORDS = st.one_of(
    st.sampled_from(NAMES.split()),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)
GRAMMARS = st.one_of(
    st.sampled_from(
        ['root ::= "a"', "root ::= [a-", "root ::= root", "root ::= x", 'x ::= "a"', "root ::= a{99999}"]
    ),
    st.text('root:=()[]{}*+?|"\\^-. \n01ax', max_size=30),
)
SCHEMAS = st.one_of(
    st.sampled_from(
        ["{}", '{"type": "integer"}', '{"$ref": "#"}', '{"$ref": "https://a/b"}', "[3", "{", '{"type": "x"}']
    ),
    st.recursive(
        st.sampled_from(
            [{}, {"type": "object"}, {"enum": [1, "a"]}, {"pattern": "^["}, {"$ref": "#/a"}, 1, None]
        ),
        lambda inner: st.dictionaries(
            st.sampled_from(["items", "properties", "anyOf", "a", "required", "minItems", "type"]), inner
        ),
        max_leaves=5,
    ).map(json.dumps),
)
KEYS = """expert_used_count=int:1 block_count=int:9999999999999 rope.freq_base=float:0 context_length=int:0
    attention.head_count=int:0 attention.layer_norm_rms_epsilon=float:-1 rope.scaling.type=str:x
    expert_count=int:0 embedding_length=int:64 expert_gating_func=int:99 feed_forward_length=int:1
    attention.key_length=int:7 rope.dimension_count=int:3 attention.head_count_kv=int:3"""
OTHER_KEYS = """a=int:1 =int:1 a=float:nan a=bool:yes a a=b:c general.architecture=str:x
    tokenizer.ggml.model=str:none tokenizer.ggml.bos_token_id=int:99999999 tokenizer.ggml.pre=str:nope
    tokenizer.ggml.eos_token_id=int:-5 tokenizer.ggml.add_bos_token=bool:true"""
WRITTEN = {
    "--json-schema": SCHEMAS,
    "--logit-bias": st.one_of(
        st.sampled_from(["1+1", "2-inf", "3+inf", "1+1e400", "99999999999999999999-1"]),
        st.text("0123+-.ea ", max_size=8),
    ),
    "--override-kv": st.sampled_from(
        [*(f"qwen3moe.{each}" for each in KEYS.split()), *OTHER_KEYS.split(), f"a=str:{'x' * 200}"]
    ),
}
# Values that fit. Others that fit would only take long, or all the memory.
FITTING = {
    "--max-tokens": ["0", "1", "5"], "--ctx": ["0", "1", "32", "300"], "--threads": ["0", "1", "3"],
    "--threads-batch": ["0", "1", "3"], "--batch": ["1", "7", "512"], "--ubatch": ["1", "5", "512"],
    "--draft-length": ["0", "1", "63"],
}  # fmt: skip


def values(action: argparse.Action, files: list[str]) -> st.SearchStrategy[str]:
    """Return the values that the option may be given."""
    name = action.option_strings[0]
    if name in FITTING:
        # These are the NUMBERS that are refused or small.
        bad = NUMBERS.filter(
            lambda text: not text.lstrip("+0").isdigit() or not int(text) > 0 or int(text) > 2**31
        )
        return st.one_of(st.sampled_from(FITTING[name]), bad.filter(lambda text: text != "-1"))
    if name == "--grammar":
        return GRAMMARS
    if name in WRITTEN:
        return WRITTEN[name]
    if name == "--stats-file":
        return st.sampled_from([files[0] + ".stats", "/proc/no/stats", "/", ""])
    if name in ("--target", "--draft", "--file", "--lora", "--grammar-file", "--json-schema-file"):
        return st.sampled_from([*files, "/nowhere/model.gguf", "/", "", "/dev/null", "/proc/self/mem"])
    if action.choices is not None:
        return st.one_of(st.sampled_from([str(choice) for choice in action.choices]), WORDS)
    return st.one_of(NUMBERS, WORDS)


@pytest.fixture(scope="module")
def files(tiny_model, tmp_path_factory):
    text = tmp_path_factory.mktemp("fuzz") / "prompt.txt"
    text.write_text("def f(")
    return [str(tiny_model("qwen3moe", n_layer=2)), str(tiny_model("qwen3", n_layer=1)), str(text)]


ACTIONS = [action for action in make_parser()._actions if action.dest != "help"]
SKIPPED = {"--verbose"}  # its purpose is to write more


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Draw options with values. "TARGET", "DRAFT" and "TEXT" stand for files."""
    names = ["TARGET", "DRAFT", "TEXT"]
    line = ["--target", "TARGET", "--prompt", draw(st.sampled_from(["x", "", "a b", "\udcff"]))]
    line += ["--max-tokens", "2", "--ctx", "64", "--threads", "1"]
    if draw(st.integers(0, 9)) == 0:
        line = ["--max-tokens", "2"]  # the demo runs if the options ask for nothing else
    for action in draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4)):
        if action.option_strings[0] in SKIPPED:
            continue
        line.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs != 0 and draw(st.integers(0, 19)):
            line.append(draw(values(action, names)))
    return line


def test_the_fuzzer_knows_the_options():
    """The options that a valid value makes slow are all options of the program."""
    assert {name for action in ACTIONS for name in action.option_strings} >= set(FITTING)
    assert len(ACTIONS) > 30


BASE = ["--target", "TARGET", "--prompt", "x", "--max-tokens", "2", "--ctx", "64", "--threads", "1"]


@budget(250)
@given(line=command_lines())
@example(line=[*BASE, "--ctx", "1"])
@example(line=[*BASE, "--draft", "TARGET", "--draft-length", "63", "--temp", "nan"])
@example(line=[*BASE, "--slots", "nan%"])
@example(line=[*BASE, "--grammar", "root ::= root"])
@example(line=[*BASE, "--mirostat", "\x0b"])  # a kind of line break gets into the message
@example(line=[*BASE, "--stats-file", "/proc/no/stats"])  # this error once came only after the text
@example(line=[*BASE, "--stats-file", "a\0b"])
@example(line=[*BASE, "--target", "a\0b"])
def test_any_command_line(line, worker, files):
    names = dict(zip(["TARGET", "DRAFT", "TEXT"], files, strict=True))
    arguments = [names.get(word, word.replace("TARGET", files[0])) for word in line]
    check(worker(arguments), arguments)
