"""The predictions of bench.scale: the documents have its tables, and the arithmetic holds at its limits."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from bench.scale import MODELS, RESULTS, VRAM, Box, Replays, main, page, with_remote, with_split
from bench.step_time.machine import GB, MACHINES

ROWS = json.loads(RESULTS.read_text())["rows"]
SMALL, *_, LARGE = MODELS


def box(name: str, cards: int = 1) -> Box:
    return Box(MACHINES[name], VRAM[name], Replays(ROWS, name, "published"), cards)


def test_the_document_has_the_tables():
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    rows = [line for line in page(RESULTS).splitlines() if line.startswith("| ") and "---" not in line]
    rows = [line for line in rows if not line.startswith("| model |")]
    assert len(rows) > 40
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_more_cards_are_never_slower(model):
    seconds = [box("rtx4090", n).token_s(model) for n in (1, 2, 4, 8, 16)]
    assert all(a >= b for a, b in pairwise(seconds))
    assert box("rtx4090", 64).slots(model, model.layers) == 1


def test_a_card_too_small_is_said():
    assert box("rtx3060").token_s(LARGE) is None
    assert replace(box("rtx3060"), vram=20 * GB).token_s(LARGE) is not None


def test_a_far_machine_gets_no_layers():
    near, layers = with_remote(box("rtx4090"), box("rtx4090"), LARGE, (1 * GB, 1e-5))
    assert layers > 0
    assert near < box("rtx4090").token_s(LARGE)
    far, layers = with_remote(box("rtx4090"), box("rtx4090"), LARGE, (1 * GB, 10.0))
    assert layers == 0
    assert far == box("rtx4090").token_s(LARGE)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_machine_that_splits_is_as_fast_as_one_with_whole_layers(model):
    here, link = box("rtx4090"), (1 * GB, 1e-5)
    seconds, layers = with_split(here, here, model, link)
    assert seconds <= with_remote(here, here, model, link)[0] * (1 + 1e-9)
    assert (layers == 0) == (here.slots(model, model.layers) == 1)
    assert with_split(here, here, model, (1 * GB, 10.0)) == (here.token_s(model), 0)


def test_sizes_are_those_of_published_files():
    """Published files in Q4_K_M have 18.6, 142 and 404 GB. Theirs mix types otherwise."""
    sizes = {model.name: model.file_bytes / GB for model in MODELS}
    assert sizes["Qwen3-30B-A3B"] == pytest.approx(18.6, rel=0.03)
    assert sizes["Qwen3-235B-A22B"] == pytest.approx(142, rel=0.03)
    assert sizes["DeepSeek-V3"] == pytest.approx(404, rel=0.03)


def test_results_without_the_rows_are_one_line(tmp_path, capsys):
    (tmp_path / "none.json").write_text('{"rows": []}')
    assert main(["--results", str(tmp_path / "none.json")]) == 2
    assert "run python -m bench.step_time" in capsys.readouterr().err
