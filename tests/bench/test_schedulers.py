"""Schedulers are judged on traces, at each window and link."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from bench.__main__ import main
from tests.scheduler.test_transitions import grammar

NAMES = ["lru", "logistic", "logistic:margin=0.5"]


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> tuple[str, list[dict]]:
    """Return the page and the rows of a trace at two windows, with and without a limit, and on a machine."""
    folder = tmp_path_factory.mktemp("schedulers")
    grammar(300).save(folder / "words.npz")
    code = main([
        "schedulers", str(folder / "words.npz"), "--out", str(folder / "page.txt"), "--slots", "25%",
        "--windows", "1", "4", "--copies", "all", "3", "--machines", "rtx4090", "--schedulers", *NAMES,
        "--expert-bytes", "2000000",
    ])  # fmt: skip
    assert code == 0
    return (folder / "page.txt").read_text(), json.loads((folder / "page.json").read_text())["figures"]


def test_every_scheduler_is_judged_on_every_link(page):
    rows = {(row["window"], row["link"], row["scheduler"]): row for row in page[1]}
    assert len(rows) == len(page[1]) == 2 * 3 * len(NAMES)
    for (window, link, name), row in rows.items():
        assert 0 < row["distinct"] <= 1
        assert row["of_bound"] == pytest.approx(row["distinct"] / row["belady"])
        if link == "rtx4090":
            assert row["step_ms"] > 1
            assert row["fit"] == pytest.approx(row["step_ms"] * 21.6e9 / 2e6 / 1e3)
        else:
            assert row["step_ms"] is None
            assert (row["distinct"] == row["activations"]) == (window == 1)
        assert row["copies"] <= 3 or link != "3"
        assert (
            row["copies"] <= rows[window, "all", "lru"]["copies"] or name == "logistic" or link == "rtx4090"
        )
    assert rows[1, "all", "logistic"]["distinct"] > rows[1, "3", "logistic"]["distinct"]
    # Where copies are free, the price of a copy is 0, and the fixed margin loses.
    assert rows[1, "all", "logistic"]["distinct"] > rows[1, "all", NAMES[2]]["distinct"] + 0.05


def test_the_page_has_all_figures(page):
    text, rows = page
    assert "all copies done between the steps: share of Belady's" in text
    assert "predictions for rtx4090: step ms" in text
    best = rows[1]
    assert f"{best['of_bound']:.1%} ({best['copies']:.1f})" in text
    assert text.count("words ") == len(rows) + 2 * 3  # every row, and a line for each window and link


def test_cards_have_the_slots_of_a_named_model(tmp_path):
    """The shares are those of docs/quickstart.md. Cards that do not hold the rest are left out."""
    grammar(40).save(tmp_path / "words.npz")
    words = ["--windows", "1", "--copies", "--machines", "rtx3060", "--schedulers", "lru"]
    code = main([
        "schedulers", str(tmp_path / "words.npz"), "--model", "deepseek-v4-flash", "--cards", "8", "12", "24",
        *words, "--out", str(tmp_path / "page.txt"),
    ])  # fmt: skip
    assert code == 0
    rows = json.loads((tmp_path / "page.json").read_text())["figures"]
    assert [f"{float(row['slots'].rstrip('%')):.0f}" for row in rows] == ["2", "10"]
    assert rows[0]["step_ms"] > rows[1]["step_ms"]


def test_a_recordings_own_steps_are_replayed_with_what_its_draft_foretold(tmp_path, capsys):
    demand = grammar(120).demand(3)
    replace(demand, draft_routes=demand.routes).save(tmp_path / "words.npz")
    words = ["schedulers", str(tmp_path / "words.npz"), "--windows", "0", "--copies", "all", "--machines"]
    names = ["--slots", "25%", "--schedulers", "lru", "moe-speq"]
    assert main([*words, *names, "--out", str(tmp_path / "page.txt")]) == 0
    past, foretold = json.loads((tmp_path / "page.json").read_text())["figures"]
    assert past["window"] == 0
    assert past["distinct"] < past["belady"] < foretold["distinct"]
    capsys.readouterr()
    assert main([*words, "--slots", "25%", "--schedulers", "sp-moe"]) == 2
    assert "needs what the target's routers choose" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedulers", "moe-speq"], "follows a draft"),
        (["--schedulers", "best"], "unknown scheduler"),
        (["--machines", "h200"], "--expert-bytes"),
        (["--machines", "--copies", "many"], "not 'many'"),
        (["--machines", "--windows", "-1"], "at least 1"),
        (["--machines", "--windows", "0"], "not a recording"),
        (["--machines", "--windows", "0", "--tokens", "9"], "cannot cut"),
        (["--machines", "--tokens", "0"], "at least 1"),
        (["--machines", "--slots", "much"], "slots"),
        (["--expert-bytes", "1", "2"], "needs 1 number"),
        (["--cards", "8"], "--cards needs --model"),
    ],
)
def test_bad_input_gets_one_line(tmp_path, capsys, arguments, message):
    grammar(20).save(tmp_path / "words.npz")
    assert (
        main(["schedulers", str(tmp_path / "words.npz"), "--slots", "25%", "--windows", "1", *arguments]) == 2
    )
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
