"""A scheduler's options and time are shown, and an engine's counts are the statistics."""

from __future__ import annotations

import json

import pytest

from spac import demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.scheduler import make
from spac.stats.scheduler_time import given_options


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("moe-spac", {}),
        ("moe-spac", {"levels": 8, "balance": False}),
        ("logistic", {"margin": 0.5}),
        ("lru", {}),
    ],
)
def test_options_that_are_no_defaults(name, options):
    assert given_options(make(name, **options), options) == options


@pytest.mark.parametrize("scheduler", ["lru", "moe-spac:levels=6", "static"])
def test_an_engine_counts(scheduler):
    config = EngineConfig(
        target=demo.TARGET, draft=demo.DRAFT, device="simulated", threads=1, ctx=512, draft_length=4,
        scheduler=scheduler, slots=0.25, sampling=SamplingConfig(temp=0.0, seed=1),
    )  # fmt: skip
    with Engine(config) as engine:
        generation = engine.generate(demo.PROMPT, 30)
        "".join(generation)
    data = json.loads(generation.stats.to_json())
    assert 0 < data["scheduler_s"] < data["decode_s"]
    assert data["scheduler"] == scheduler.partition(":")[0]
    assert data["scheduler_options"] == ({"levels": 6} if "levels" in scheduler else {})
    if scheduler == "static":  # The set is resident from the start.
        assert data["uploads_wasted"] == data["evictions"] == 0
    else:
        assert 0 < data["uploads_wasted"] <= data["evictions"]
        assert data["upload_s"] > 0
