"""A wrong option gives one line with the accepted values, and exit code 2. llama.cpp's spellings are read."""

from __future__ import annotations

import argparse

import pytest

from spac.cli.program import in_options
from spac.run import make_parser
from tests.cli.options_page import PROGRAMS, parser_of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--temp", "101"], "0 to 100"),
        (["--temp", "warm"], "0 to 100"),
        (["--top-p", "1.5"], "0 to 1"),
        (["--min-p", "-1"], "0 to 1"),
        (["--top-k", "2.5"], "whole number"),
        (["--seed", "-2"], "-1 to 4294967294"),
        (["--threads", "-1"], "0 to 512"),
        (["--ctx", "-5"], "0 to 16777216"),
        (["--batch", "0"], "1 to 1048576"),
        (["--max-tokens", "-2"], "-1 to 2147483647"),
        (["--draft-length", "64"], "0 to 63"),
        (["--draft-type", "guess"], "ngram-simple"),
        (["--slots", "150%"], "0% to 100%"),
        (["--slots", "many"], "'auto', a count (64), or a share"),
        (["--slots", "-3"], "negative"),
        (["--scheduler", "belady"], "lru"),
        (["--device", "CUDA7"], "simulated"),
        (["--stats", "xml"], "json"),
        (["--what"], "--what"),
        (["-p", "a", "-f", "b"], "not allowed with"),
        (["--draft-type", "draft-simple"], "--draft FILE"),
        (
            ["--draft-length", "3", "--draft-max", "4"],
            "--draft-length is every draft's, --draft-max the longest",
        ),
        (["--latency-budget", "20", "--draft-length", "3"], "leave out --draft-length and"),
    ],
)
def test_an_option_that_cannot_be_says_what_is_accepted(spac_run, target, arguments, said):
    prompt = [] if "-p" in arguments else ["-p", "x"]
    outcome = spac_run("-m", target, *prompt, *arguments)
    assert outcome.code == 2
    assert outcome.out == ""
    assert said in outcome.error


@pytest.mark.parametrize(
    ("grammar", "cause"),
    [
        ("root ::= [", "unexpected end of input"),
        ("root ::= x", "the rule 'x' is not defined"),
        ('root ::= "a" )', "expecting newline or end (line 1, column 14)"),
    ],
)
def test_a_grammar_with_a_fault_gives_one_line(spac_run, target, grammar, cause):
    outcome = spac_run("-m", target, "-p", "x", "-q", "--grammar", grammar)
    assert outcome.code == 2
    assert outcome.error.endswith(f"the grammar cannot be used: {cause}")


def test_a_fault_of_the_simulated_device_names_its_variable(spac_run, target):
    outcome = spac_run("-m", target, "-p", "x", env={"SPAC_SIMULATED_DEVICE": "fault=none-such"})
    assert outcome.code == 2
    assert "SPAC_SIMULATED_DEVICE: unknown fault 'none-such'" in outcome.error


def test_a_draft_without_a_target(spac_run, draft):
    outcome = spac_run("-md", draft, "-p", "x")
    assert outcome.code == 2
    assert "--target" in outcome.error


def test_no_prompt(spac_run, target):
    outcome = spac_run("-m", target)
    assert outcome.code == 2
    assert "--prompt" in outcome.error


def test_a_prompt_file_that_is_missing(spac_run, target, tmp_path):
    outcome = spac_run("-m", target, "-f", tmp_path / "no.txt")
    assert outcome.code == 2
    assert "no.txt" in outcome.error


def test_an_empty_prompt(spac_run, target):
    outcome = spac_run("-m", target, "-p", "")
    assert outcome.code == 2
    assert "prompt is empty" in outcome.err


def test_a_prompt_that_does_not_fit(spac_run, target):
    outcome = spac_run("-m", target, "-p", "abc " * 300, "-c", "256", "-q")
    assert outcome.code == 2
    assert "256" in outcome.error


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_help_fits_on_two_screens(name, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = parser_of(name).help_on(None)
    assert len(text.splitlines()) <= 80
    assert max(map(len, text.splitlines())) <= 80


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
    assert "--top-k" not in outcome.out
    assert "--top-k" in spac_run("--help", "sampling").out
    assert "--slots" not in spac_run("--help=sampling").out
    assert "--top-k" in spac_run("--help", "all").out
    wrong = spac_run("--help", "sampler")
    assert wrong.code == 2
    assert "'sampler' is no group: choose one of text, engine" in wrong.error


def test_spellings_of_llama_cpp_are_understood(spac_run, target, draft):
    outcome = spac_run(
        "--model", target, "--model-draft", draft, "--draft-max", 4, "--ctx-size", 512, "-n", 4, "-t", 1,
        "-b", 64, "-ub", 64, "--temperature", 0, "-s", 1, "--prompt", "def", "-dev", "simulated",
        "--n-predict", 3,
    )  # fmt: skip
    assert outcome.code == 0
    assert "3 tokens" in outcome.err


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("draft_length: must be 0 to 63", "--draft-length: must be 0 to 63"),
        ("slots must be more", "--slots must be more"),
        ("no slots are left", "no slots are left"),
        (
            "my_draft_length.gguf: vram_limit.json has draft_max",
            "my_draft_length.gguf: vram_limit.json has --draft-max",
        ),
        ("'draft_max' is unknown", "'draft_max' is unknown"),
    ],
)
def test_messages_name_options(message, shown):
    assert in_options(make_parser(), message) == shown
