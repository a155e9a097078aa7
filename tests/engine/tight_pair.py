"""A pair on the simulated device, and a memory limit too small for all experts beside the draft."""

from __future__ import annotations

from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine


def pair_starter(tiny_model, **defaults):
    """Return a function that starts engines of a tiny pair. Its options go before `defaults`."""

    def start(**options):
        config = {
            "target": tiny_model("qwen3moe"), "draft": tiny_model("qwen3", n_layer=1), "draft_max": 4,
            "device": "simulated", "slots": "auto", "vram_limit": 512 << 20, "threads": 1, "ctx": 256,
            "sampling": SamplingConfig(temp=0.0, seed=1, ignore_eos=True),
        }  # fmt: skip
        return Engine(EngineConfig(**{**config, **defaults, **options}))

    return start


def used():
    """Return the bytes of the simulated device that are in use."""
    return next(each.memory.used for each in _core.devices() if each.name == "simulated")


def tight_limit(start):
    """Return a limit under which not all experts fit beside the draft of an engine that `start` makes."""
    with start() as engine:
        return int((used() - engine.experts.slots.bytes / 2) / 0.95)
