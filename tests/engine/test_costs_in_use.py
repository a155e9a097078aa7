"""An engine corrects the costs of its models and keeps them. No fault of the cache stops it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.costs.estimator import CostEstimator
from spac.engine import Engine
from spac.engine.costs_in_use import key_of, spares_hand_offs
from spac.model.expected_speed import kept_costs
from spac.model.pair import ModelPair


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the cache, which belongs to the test alone."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "spac" / "measured"


def test_costs_of_other_cpu_kernels_are_anothers(tiny_model):
    with closing(ModelPair(EngineConfig(target=tiny_model("qwen3moe"), device="cpu"), None)) as pair:
        ours = key_of(pair)
        try:
            _core.set_cpu_kernels(False)
            theirs = key_of(pair)
        finally:
            _core.set_cpu_kernels(True)
    assert (ours.path == theirs.path) == (not _core.trusted_cpu_kernels())


def generate(target: Path, n_tokens: int, scheduler: str = "moe-spac") -> tuple[Engine, CostEstimator]:
    config = EngineConfig(
        target=target, device="simulated", slots=0.3, threads=1, ctx=256, scheduler=scheduler,
        sampling=SamplingConfig(seed=1, ignore_eos=True),
    )  # fmt: skip
    with Engine(config) as engine:
        estimator = engine.costs
        assert estimator is not None
        "".join(engine.generate("def f(x):", n_tokens))
    return engine, estimator


def test_an_engine_corrects_costs_and_keeps_them_for_the_next(tiny_model, folder):
    target = tiny_model("qwen3moe")
    engine, first = generate(target, 101)  # The first token comes with the prompt.
    assert first.steps == 100
    (file,) = folder.glob("costs-*")
    assert not list(folder.glob(".*"))
    assert not [note for note in engine.notes if "costs" in note]
    kept, written = first.costs, file.read_bytes()
    _, second = generate(target, 1)
    assert second.costs.experts == kept.experts
    assert written == file.read_bytes()  # so few steps are not worth keeping


def test_without_a_writable_cache_an_engine_runs_and_says_so(tiny_model, folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file")
    engine, estimator = generate(tiny_model("qwen3moe"), 81)
    assert estimator.steps == 80
    assert len([note for note in engine.notes if "measured costs are not kept" in note]) == 1


def test_without_the_split_the_time_of_a_token_is_kept(tiny_model, folder):
    target = tiny_model("qwen3moe")
    config = EngineConfig(
        target=target, device="cpu", threads=1, ctx=256, sampling=SamplingConfig(ignore_eos=True)
    )
    for n_tokens, kept in ((20, False), (50, True)):  # so few steps are not worth keeping
        with Engine(config) as engine:
            assert engine.costs is None
            generation = engine.generate("def f(x):", n_tokens)
            "".join(generation)
        assert bool(list(folder.glob("costs-*"))) == kept
    found = kept_costs(target, "cpu")
    assert found is not None
    assert found.experts == ()
    assert 0 < found.verify(1) <= generation.stats.decode_s
    assert kept_costs(target, "CUDA0") is None
    folder.rename(folder.with_name("away"))
    folder.write_text("a file")
    with Engine(config) as engine:
        "".join(engine.generate("def f(x):", 50))
    assert not [note for note in engine.notes if "costs" in note]


@pytest.mark.parametrize(
    ("masks", "tried", "spared"),
    [("", True, True), ("", False, False), ("no-masks", True, False), ("masks", False, True)],
)
def test_where_the_device_reads_no_masks_no_hand_off_is_spared(monkeypatch, masks, tried, spared):
    """On such a device the CPU lists the resident experts, so every layer waits for the CPU."""
    monkeypatch.setenv("SPAC_FORM", masks)
    assert spares_hand_offs(SimpleNamespace(reads_masks=tried)) == spared
    assert spares_hand_offs(None)
