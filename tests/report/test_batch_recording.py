"""A recording of several generations at once."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spac import demo
from spac.engine import Engine
from spac.errors import InputError
from spac.report.figures import read
from spac.report.page import page
from tests.engine.test_several import config, texts
from tests.exact import PROMPTS
from tests.serve.conftest import Server


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(
        config(draft=demo.DRAFT, draft_length=4, parallel=3, ctx=768, scheduler="moe-spac")
    ) as engine:
        yield engine


def test_a_batch_is_recorded(engine: Engine, tmp_path: Path) -> None:
    """The sums are the statistics of the same time, and earlier generations do not count."""
    assert all(texts(engine, ["import os\n", "class Node:"], 30))
    before = engine.batch_stats
    with engine.record(tmp_path / "batch.npz"):
        assert all(texts(engine, PROMPTS[:4], 30))
    after = engine.batch_stats
    assert not engine.experts.trace.on
    recording = read(str(tmp_path / "batch.npz"))
    steps = after.steps - before.steps
    assert recording.total("steps") == recording.stats["steps"] == steps
    n_tokens = recording.stats["generated_tokens"]
    assert n_tokens == after.generated_tokens - before.generated_tokens >= 4 * 30
    assert n_tokens / 2 < recording.total("tokens") < n_tokens, "no step makes those beside a prompt's end"
    assert recording.total("drafted") == after.drafted_tokens - before.drafted_tokens
    assert steps < recording.total("sequences") <= 3 * steps
    assert recording.matrix("demand").sum() == recording.total("activations") > 0
    assert sum(recording.content["lengths"]["steps"]) == steps
    assert recording.content["thresholds"] is not None
    assert "generations at once" in page(recording)


def test_what_cannot_be_recorded(engine: Engine, tmp_path: Path) -> None:
    with engine.record(tmp_path / "first.npz"):
        with (
            pytest.raises(InputError, match="are being recorded: end that recording first"),
            engine.record(tmp_path / "second.npz"),
        ):
            pass
        texts(engine, PROMPTS[:1], 5)
    assert read(str(tmp_path / "first.npz")).total("steps") > 0
    assert not (tmp_path / "second.npz").exists()
    with pytest.raises(InputError, match="cannot be written"), engine.record(tmp_path / "none" / "x.npz"):
        pass


def test_a_servers_recording_is_written_when_it_stops(tmp_path: Path) -> None:
    server = Server(tmp_path, "--parallel", "2", "--ctx", "1024", "--record", "server.npz")
    try:
        with ThreadPoolExecutor(2) as pool:
            made = list(pool.map(
                lambda text: server.client().completions.create(model="demo", prompt=text, max_tokens=20),
                PROMPTS[:2],
            ))  # fmt: skip
    finally:
        assert server.stop() == 0
    tokens = sum(each.usage.completion_tokens for each in made if each.usage is not None)
    # Those that come beside a prompt's tokens belong to no step.
    assert tokens >= read(str(tmp_path / "server.npz")).total("tokens") > tokens / 2
