"""Tests of the choice of the device by name."""

import pytest

from spac import _core, env
from spac.config import EngineConfig
from spac.errors import InputError
from spac.model.devices import choose_device
from spac.model.pair import ModelPair

GPUS = [device.name for device in _core.devices() if not device.shares_host_cores]


def test_auto_is_a_gpu_or_else_the_cpu(monkeypatch):
    monkeypatch.delenv(env.DEVICE.name)
    device = choose_device("auto")
    assert (None if device is None else device.name) == (GPUS[0] if GPUS else None)
    assert choose_device("CPU") is None
    assert choose_device("Simulated").name == "simulated"


def test_the_environment_says_what_auto_is(monkeypatch):
    monkeypatch.setenv(env.DEVICE.name, "simulated")
    assert choose_device("auto").name == "simulated"
    assert choose_device("cpu") is None
    monkeypatch.setenv(env.DEVICE.name, "cpu")
    assert choose_device("auto") is None
    monkeypatch.setenv(env.DEVICE.name, "CUDA99")
    with pytest.raises(InputError, match=r"unknown device 'CUDA99': choose one of auto, .*cpu"):
        choose_device("auto")


def test_options_of_a_device_are_named_on_the_cpu(tiny_model):
    options = {"ctx": 256, "threads": 1, "device": "cpu"}
    for given, said in [
        ({"slots": 5000, "vram_limit": "1M"}, "--slots 5000, --vram-limit 1.0 MiB"),
        ({}, ""),
    ]:
        pair = ModelPair(EngineConfig(target=tiny_model("qwen3moe"), **options, **given), None)
        try:
            unused = [note for note in pair.notes if "not used" in note]
            assert unused == ([f"{said}: not used, for everything runs on the CPU"] if said else [])
        finally:
            pair.close()


@pytest.mark.skipif(bool(GPUS), reason="this machine has a GPU")
def test_a_model_without_a_gpu_runs_on_the_cpu(monkeypatch, tiny_model):
    monkeypatch.delenv(env.DEVICE.name)
    pair = ModelPair(EngineConfig(target=tiny_model("qwen3moe"), ctx=256, threads=1), None)
    try:
        assert pair.placement.device is None
        assert any("no GPU found" in note and "CPU" in note for note in pair.notes)
    finally:
        pair.close()
