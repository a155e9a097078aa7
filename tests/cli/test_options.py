"""Options: ranges, help, and names in messages."""

from __future__ import annotations

import argparse
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spac.cli.program import in_options
from spac.run import make_parser
from tests.cli.options_page import PROGRAMS, parser_of

RANGES = [
    (parser, action, found[1])
    for parser in map(parser_of, PROGRAMS)
    for action in parser._actions
    if (found := re.search(r"; (-?\d+ to \d+)", action.help or ""))
]


@given(case=st.sampled_from(RANGES), data=st.data())
def test_a_number_outside_its_range_names_the_range(case, data):
    parser, action, limits = case
    low, high = map(int, limits.split(" to "))
    wrong = st.floats(max_value=low, exclude_max=True), st.floats(min_value=high, exclude_min=True)
    value = data.draw(st.one_of(*wrong, st.sampled_from(["warm", "nan"])))
    with pytest.raises(argparse.ArgumentError, match=limits):
        parser._get_value(action, str(value))


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("columns", "lines"), [(80, 80), (100, 64)])
def test_the_help_fits_on_two_screens(name, columns, lines, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    found = parser_of(name).help_on(None).splitlines()
    assert len(found) <= lines
    assert max(map(len, found)) <= columns


def test_the_help_of_bench_begins_with_what_it_compares_and_has_its_own_defaults():
    text = " ".join(parser_of("bench").help_on(None).split())
    for flag in ("--schedulers", "--slots", "--draft-lengths", "--submit"):
        assert f" {flag}" in text
    assert "0 is greedy; 0 to 100 (default: 0)" in text
    assert "which is reported (default: 1)" in text
    assert "0 is greedy; 0 to 100 (default: 0.8)" in " ".join(parser_of("run").help_on(None).split())


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_option_is_in_the_help_of_its_group(name):
    parser = parser_of(name)
    groups = parser.groups()
    assert len(groups) == len([group for group in parser._action_groups[2:] if group._group_actions])
    parts = [parser.help_on(group) for group in groups]
    for action in parser._actions:
        for flag in action.option_strings if action.help != argparse.SUPPRESS else ():
            assert flag in parser.help_on("all")
            ours = action in parser._action_groups[1]._group_actions
            assert ours or [part for part in parts if flag in part.replace(",", " ").split()], flag


def test_help_says_how_to_see_the_rest(spac_run):
    outcome = spac_run("--help")
    assert outcome.code == 0
    assert outcome.out.splitlines()[-1].split() == ["--help", "all", "every", "option"]
    assert "--help sampling" in outcome.out
    for group, told in {(): False, ("sampling",): True, ("all",): True}.items():
        assert ("--top-k" in spac_run("--help", *group).out) == told
    assert "--slots" not in spac_run("--help=sampling").out
    assert "'sampler' is no group: choose one of text, engine" in spac_run("--help", "sampler").refusal


def test_spellings_of_llama_cpp_are_understood(spac_run, target, draft):
    outcome = spac_run(
        "--model", target, "--model-draft", draft, "--draft-max", 4, "--ctx-size", 512, "-n", 4, "-t", 1,
        "-b", 64, "-ub", 64, "--temperature", 0, "-s", 1, "--prompt", "def", "-dev", "simulated",
        "--n-predict", 3,
    )  # fmt: skip
    assert (outcome.code, "3 tokens" in outcome.err) == (0, True)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("draft_length: must be 0 to 63", "--draft-length: must be 0 to 63"),
        ("slots must be more", "--slots must be more"),
        ("no slots are left", "no slots are left"),
        ("my_draft_length.gguf: vram_limit.json has draft_max", "my_draft_length.gguf: vram_limit.json has "
         "--draft-max"),
        ("'draft_max' is unknown", "'draft_max' is unknown"),
    ],
)  # fmt: skip
def test_messages_name_options(message, shown):
    assert in_options(make_parser(), message) == shown
