"""A loop's steps follow each other without a gap, and the times of their parts are within theirs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine

PAUSE_S = 0.05
TEXT = "def f(x):\n    return x\n" * 8


@pytest.mark.parametrize("drafts", [{"draft_max": 0}, {"draft_length": 1}])
def test_a_step_begins_where_the_one_before_it_ended(tiny_model, drafts):
    mtp: Path = tiny_model("glm4moe", n_layer=4, options={"mtp": 1})
    seen = []

    def observe(step, lengths, seconds, counts) -> None:
        seen.append((step, seconds))
        time.sleep(PAUSE_S)

    config = EngineConfig(
        mtp, slots=4, threads=1, ctx=512, sampling=SamplingConfig(temp=0.0, ignore_eos=True), **drafts
    )
    with Engine(config) as engine:
        engine.steps.observe(observe)
        for text in (TEXT, TEXT[::-1]):
            "".join(engine.generate(text, 6))
    first = [i for i, (step, _) in enumerate(seen) if not step.verified]
    for i, (step, seconds) in enumerate(seen):
        parts = step.batch.draft_ns + step.batch.verify_ns + step.batch.sample_ns
        assert parts * 1e-9 <= seconds
        if step.verified and i - 1 not in first:
            assert seconds >= PAUSE_S
    assert len(first) == 2
    assert len(seen) >= 6
