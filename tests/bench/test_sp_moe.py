"""The tables of SP-MoE come from recordings of a pair. A model that is its own draft is predicted wholly."""

from __future__ import annotations

import json
import re

import pytest

from bench.sp_moe.__main__ import main


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    """Return a folder of recordings, and the options of its pair."""
    path, folder = str(tiny_model("mixtral")), tmp_path_factory.mktemp("sp_moe")
    pair = ["--target", path, "--draft", path, "--number", "1", "--tokens", "12"]
    assert main(["record", str(folder), *pair, "--lengths", "1", "3"]) == 0
    return folder, pair


def test_the_page_has_every_table(recorded, capsys, tmp_path):
    folder, _ = recorded
    out = tmp_path / "page.md"
    assert main(["table", str(folder), "--out", str(out)]) == 0
    page = out.read_text()
    assert page.split("\n", 1)[1].strip() == capsys.readouterr().out.strip()
    for title in ("Fig. 7", "Table 3", *(f"Fig. {n}" for n in (11, 12, 13, 14))):
        assert f"({title})" in page
    for row in ("cosine of the states", "the router's first is used", "among the best k"):
        line = next(line for line in page.splitlines() if row in line)
        assert set(re.findall(r"\d\.\d{3}", line)) == {"1.000"}, "the draft is the target"
    assert "%" in next(line for line in page.splitlines() if line.startswith("| sp-moe "))
    assert json.loads((folder / "facts.json").read_text())["record"][1].startswith("draft length 3")


def test_live_runs_write_one_text(recorded, capsys, tmp_path):
    folder, pair = recorded
    assert main(["live", str(folder), *pair, "--lengths", "1", "--slots", "50%", "--link", "50",
                 "--repeat", "1"]) == 0  # fmt: skip
    systems, cutoffs = capsys.readouterr().out.split("## Cutoff layer (Fig. 14)")
    timed = [line.split("|")[1].strip() for line in cutoffs.splitlines() if line.startswith("| ")][2:]
    assert timed == [str(n) for n in range(len(timed))]
    assert len(timed) > 1
    rows = [line for line in systems.splitlines() if line.startswith("| 1 ")]
    assert [row.split("|")[2].strip() for row in rows] == ["device"] * 4 + ["CPU"] * 4
    # The hit rates themselves depend on the times of copies.
    assert all(re.search(r"\| +\d{1,3}\.\d% \|", row) for row in rows), rows


def test_bad_input_gets_one_line(tmp_path, capsys, recorded):
    _, pair = recorded
    assert main(["table", str(tmp_path)]) == 2
    assert main(["record", str(tmp_path), *pair, "--prompts", str(tmp_path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True, True]
    assert "has no .jsonl files" in lines[1]
