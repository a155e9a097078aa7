"""Each benchmark is a name of one runner, and all pages are written in one way."""

from __future__ import annotations

import argparse
import importlib
import json
import re
from pathlib import Path

import pytest

from bench import cards, page
from bench.__main__ import QUESTIONS, main


def test_every_question_is_listed_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, (_, question) in QUESTIONS.items():
        assert f"  {name:<18}{question}" in lines
    assert len(QUESTIONS) <= 20


def test_the_page_of_benchmarks_has_every_question() -> None:
    text = (page.ROOT / "docs" / "benchmarks.md").read_text()
    assert set(re.findall(r"`python3? -m bench (\w+)", text)) == {"NAME", *QUESTIONS}


@pytest.mark.parametrize("name", QUESTIONS)
def test_every_question_has_a_module(name: str) -> None:
    module = importlib.import_module(f"bench.{QUESTIONS[name][0]}")
    parser = argparse.ArgumentParser(description=module.__doc__)
    module.options(parser)
    assert callable(module.run)
    assert parser.format_help()


def test_another_name_gets_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak"]) == 2
    assert capsys.readouterr().err == "error: no benchmark is called 'soak': `python -m bench` lists them\n"


def test_a_page_has_command_machine_and_commit(tmp_path: Path) -> None:
    args = argparse.Namespace(
        out=tmp_path / "page.md", command="python -m bench x /a/model.gguf --peer 'p=/b/run -q'"
    )
    page.publish(args, "A title", page.table(("a", "b"), [["1", page.spread([3.0, 1.0, 2.0])]]), [1])
    facts = json.loads((tmp_path / "page.json").read_text())
    assert facts["command"] == "python -m bench x model.gguf --peer 'p=run -q'"
    assert facts["figures"] == [1]
    lines = (tmp_path / "page.md").read_text().splitlines()
    assert lines[0] == "# A title"
    assert lines[2] == f"`{facts['command']}`, {page.machine()}, {facts['commit']}"
    assert lines[4:] == ["| a | b |", "| --- | --- |", "| 1 | 2.0 (1.0–3.0) |"]


def test_figures_do_not_replace_their_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--out takes a page"):
        page.publish(argparse.Namespace(out=tmp_path / "page.json"), "A title", "text", [])


def test_the_page_of_cards_has_the_files_table() -> None:
    """tests/cli/test_bench.py makes a file that gives a row."""
    assert main(["cards", "--check"]) == 0
    found = cards.cards()
    assert found
    assert all(len(cards.row(each)) == len(cards.HEAD) for each in found)
    assert cards.PAGE.read_text().count("| NVIDIA H100") == 1
