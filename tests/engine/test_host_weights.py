"""While host memory is short, copies on huge pages and pinned weights give back what the device holds too."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from spac import _core, demo
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine, host_weights
from spac.errors import InputError
from spac.machine import host_memory
from spac.model import huge_pages


@pytest.fixture(autouse=True)
def as_before():
    yield
    _core.set_simulated_device()


def held_bytes() -> int:
    """Return the bytes in memory of the target's mapping, and of read-only regions like a copy of it."""
    total, counts = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"(\w+)-(\w+) (\S+) \w+ (\S+) (\d+) *(.*)", line):
            own = match[5] == "0" and (not match[6] or match[6].startswith("[anon"))
            large = int(match[2], 16) - int(match[1], 16) > 64 << 10
            counts = match[6] == str(demo.TARGET) or (match[3] == "r--p" and own and large)
        elif counts and line.startswith("Rss:"):
            total += int(line.split()[1]) << 10
    return total


def text(engine: Engine, n: int = 32) -> str:
    assert engine.experts is not None
    found = "".join(engine.generate("def add(a, b):\n", n))
    assert engine.experts.settle(10)
    return found


@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("kind", ["copy", "pinned copy", "pinned mapping"])
def test_weights_that_the_device_holds_leave_a_short_memory(kind, short, monkeypatch):
    if pinned := kind != "copy":
        monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "pin_limit_mb=64")
        monkeypatch.setenv("SPAC_PIN", "1")
    monkeypatch.setattr(huge_pages, "missing", lambda: "")
    monkeypatch.setattr(host_weights, "LOOK_S", 0.0)
    free = [1 << 40]
    monkeypatch.setattr(host_memory, "available", lambda: free[0])
    config = EngineConfig(
        target=demo.TARGET, device="simulated", threads=1, ctx=256, slots=1.0, state="off",
        huge_pages="off" if kind == "pinned mapping" else "on", stream_batch=32,
        sampling=SamplingConfig(temp=0.0, ignore_eos=True),
    )  # fmt: skip
    others = held_bytes()
    with Engine(config) as engine:
        assert engine.experts is not None
        expected = text(engine)  # copies all experts
        before, experts = held_bytes() - others, engine.experts.host_bytes
        assert (experts.pinned > 0) is pinned
        assert before > 0.9 * demo.TARGET.stat().st_size
        free[0] = 1 if short else free[0]
        assert text(engine) == expected
        after = held_bytes() - others
        given = [note for note in engine.notes if "of weights that the device holds left it" in note]
        if not short:
            assert not given
            assert after == before
            assert engine.experts.host_bytes.pinned == experts.pinned
            return
        assert len(given) == 1
        assert after < 0.4 * before
        assert engine.experts.host_bytes.pinned <= 0.1 * experts.pinned
        engine.set_slots(0.3)  # hardly a layer is whole, so the CPU reads the file
        assert text(engine) == expected
        assert engine.experts.residency().min() < 0
        long = "".join(engine.generate("def add(a, b):\n" * 9, 8))  # streamed, from pieces of both kinds
        engine.set_slots(1.0)  # and the device gets its experts from there
        assert text(engine) == expected
        assert "".join(engine.generate("def add(a, b):\n" * 9, 8)) == long
        with pytest.raises(InputError, match="does not exist"):
            engine.experts.return_to_file([99], False)
