"""Random command lines: options of the program with values that fit, nearly fit, and do not."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from spac.run import make_parser
from tests.conftest import TinyModel
from tests.fuzz.driver import Worker, budget, check

# What numbers look like when they go wrong.
NUMBERS = st.sampled_from(
    [
        *(
            "0",
            "1",
            "2",
            "3",
            "-1",
            "-2",
            "00",
            "+1",
            "1.0",
            "0.5",
            "1e0",
            "1e400",
            "-0.0",
            "nan",
            "inf",
            "-inf",
        ),
        *("2147483647", "2147483648", "4294967295", "18446744073709551616", "-9223372036854775809", "1_0"),
        *(
            "0x10",
            "",
            " ",
            "1 ",
            "½",
            "１",
            "one",
            "1,5",
            "--",
            "-",
            "%",
            "50%",
            "101%",
            "-5%",
            "auto",
            "None",
        ),
    ]
)
WORDS = st.one_of(
    st.sampled_from(
        ["none", "lru", "static", "text", "json", "cpu", "stand-in", "auto", "SPAC0", "CUDA0", "x"]
    ),
    st.sampled_from(
        ["draft-simple", "ngram-simple", "ngram-mod", "draft-mtp,ngram-simple", "draft-eagle3", ","]
    ),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
)
GRAMMARS = st.one_of(
    st.sampled_from(
        ['root ::= "a"', "root ::= [a-", "root ::= root", "root ::= x", 'x ::= "a"', "root ::= a{99999}"]
    ),
    st.text('root:=()[]{}*+?|"\\^-. \n01ax', max_size=30),
)
# Values that fit, where any other that fits would only take long or all the memory.
FITTING = {
    "--max-tokens": ["0", "1", "5"],
    "--ctx": ["0", "1", "32", "300"],
    "--threads": ["0", "1", "3"],
    "--batch": ["1", "7", "512"],
    "--ubatch": ["1", "5", "512"],
    "--draft-length": ["0", "1", "63"],
}
LIMIT = 4096  # numbers above it that FITTING's options would take


def values(action: argparse.Action, files: list[str]) -> st.SearchStrategy[str]:
    """What the option may be given."""
    name = action.option_strings[0]
    if name in FITTING:
        # NUMBERS as far as they are refused, or small.
        bad = NUMBERS.filter(
            lambda text: not text.lstrip("+0").isdigit() or not int(text) > 0 or int(text) > 2**31
        )
        return st.one_of(st.sampled_from(FITTING[name]), bad.filter(lambda text: text != "-1"))
    if name == "--grammar":
        return GRAMMARS
    if name == "--stats-file":
        return st.sampled_from([files[0] + ".stats", "/proc/no/stats", "/", ""])
    if name in ("--target", "--draft", "--file"):
        return st.sampled_from([*files, "/nowhere/model.gguf", "/", "", "/dev/null", "/proc/self/mem"])
    if action.choices is not None:
        return st.one_of(st.sampled_from([str(choice) for choice in action.choices]), WORDS)
    return st.one_of(NUMBERS, WORDS)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as worker:
        yield worker


@pytest.fixture(scope="module")
def files(tiny_model: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    text = tmp_path_factory.mktemp("fuzz") / "prompt.txt"
    text.write_text("def f(")
    return [str(tiny_model("qwen3moe", n_layer=2)), str(tiny_model("qwen3", n_layer=1)), str(text)]


ACTIONS = [action for action in make_parser()._actions if action.dest != "help"]
SKIPPED = {"--verbose"}  # it is there to say more


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """Options with values; "TARGET", "DRAFT" and "TEXT" stand for files."""
    names = ["TARGET", "DRAFT", "TEXT"]
    line = ["--target", "TARGET", "--prompt", draw(st.sampled_from(["x", "", "a b", "\udcff"]))]
    line += ["--max-tokens", "2", "--ctx", "64", "--threads", "1"]
    if draw(st.integers(0, 9)) == 0:
        line = ["--max-tokens", "2"]  # the demo, if nothing else is asked for
    for action in draw(st.lists(st.sampled_from(ACTIONS), min_size=1, max_size=4)):
        if action.option_strings[0] in SKIPPED:
            continue
        line.append(draw(st.sampled_from(action.option_strings)))
        if action.nargs != 0 and draw(st.integers(0, 19)):
            line.append(draw(values(action, names)))
    return line


def test_the_fuzzer_knows_the_options() -> None:
    """Those that a valid value makes slow are all listed."""
    assert {name for action in ACTIONS for name in action.option_strings} >= set(FITTING)
    assert len(ACTIONS) > 30


BASE = ["--target", "TARGET", "--prompt", "x", "--max-tokens", "2", "--ctx", "64", "--threads", "1"]


@budget(1000)
@given(line=command_lines())
@example(line=[*BASE, "--ctx", "1"])
@example(line=[*BASE, "--draft", "TARGET", "--draft-length", "63", "--temp", "nan"])
@example(line=[*BASE, "--slots", "nan%"])
@example(line=[*BASE, "--grammar", "root ::= root"])
@example(line=[*BASE, "--mirostat", "\x0b"])  # a line break of a kind in the message
@example(line=[*BASE, "--stats-file", "/proc/no/stats"])  # was found out after the text
@example(line=[*BASE, "--stats-file", "a\0b"])
@example(line=[*BASE, "--target", "a\0b"])
def test_any_command_line(line: list[str], worker: Worker, files: list[str]) -> None:
    names = dict(zip(["TARGET", "DRAFT", "TEXT"], files, strict=True))
    arguments = [names.get(word, word.replace("TARGET", files[0])) for word in line]
    check(worker(arguments), arguments)
