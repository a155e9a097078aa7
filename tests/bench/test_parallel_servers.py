"""The benchmark of servers counts the tokens and times of clients that ask at once."""

from __future__ import annotations

from argparse import Namespace

import pytest

from bench.parallel_servers import Figures, measured, prompt, rows_of, run
from spac import demo
from spac.errors import InputError


def test_clients_of_a_server() -> None:
    args = Namespace(
        target=demo.TARGET, systems=["simulated"], requests=2, words=10, tokens=6, rounds=1, threads=1,
        draft=None, slots=None, context=None,
    )  # fmt: skip
    [found] = measured(2, args)
    figures = found["simulated"]
    assert len(figures.first_token_s) == 4, "two clients, two requests each"
    assert figures.tokens_per_s > 0
    assert 0 < min(figures.first_token_s) <= figures.late_s <= max(figures.first_token_s)


def test_prompts_begin_differently() -> None:
    beginnings = {prompt(number, 12).split()[0] for number in range(50)}
    assert len(beginnings) == 50
    assert len(prompt(7, 12).split()) == 13


def test_the_table_has_ratios_of_the_same_round() -> None:
    ours, peers = ([Figures(speed, [late]) for speed in (9.0, 8.0, 40.0)] for late in (1.0, 2.0))
    peers = [Figures(each.tokens_per_s / 2, each.first_token_s) for each in peers]
    rows = [{"cpu": a, "llama-server": b} for a, b in zip(ours, peers, strict=True)]
    assert "| 4 | cpu | 9.0 | 2.00 (2.00–2.00) | 1.00 s | 0.50 |" in rows_of({4: rows})


def test_a_missing_peer_is_one_line(tmp_path) -> None:
    args = Namespace(systems=["cpu", "llama-server"], peer=tmp_path / "none")
    with pytest.raises(InputError, match=r"none is missing: .*tools\.llama_server"):
        run(args)
