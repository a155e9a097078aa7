"""The device's driver pins all, a part or none of the experts. Notes tell how many. Results stay the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import spac.demo as demo
from spac import _core
from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model import pinning
from tests.cli.conftest import environment
from tests.engine.conftest import config as usual

PAGES = 3 * 4096
"""Bytes at the ends of a mapping. These pages hold other data too and stay pageable."""
PROMPT = "Once upon a time there was a small fox who lived in the wood. " * 8


@pytest.fixture(autouse=True)
def small_slices(monkeypatch):
    monkeypatch.setattr(pinning, "SLICE", 256 << 10)
    monkeypatch.delenv("SPAC_FORM", raising=False)
    monkeypatch.delenv("SPAC_PIN_LIMIT", raising=False)
    yield
    _core.set_pinning()


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    return usual(target, **{"slots": "30%", "scheduler": "lru", "draft_length": 0, **options})


def pinnable(monkeypatch: pytest.MonkeyPatch, **pairs: float) -> None:
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", ",".join(f"{name}={value}" for name, value in pairs.items()))


def notes(engine: Engine) -> list[str]:
    return [note for note in engine.notes if "pinned" in note]


class Run:
    """The results of one generation with the demo pair. Its long prompt is streamed."""

    def __init__(self, **options: Any) -> None:
        with Engine(config(draft=demo.DRAFT, stream_batch=32, **{"draft_length": 4, **options})) as engine:
            assert engine.experts is not None
            generation = engine.generate(PROMPT, 40)
            self.text = "".join(generation)
            self.stats, self.notes = generation.stats, notes(engine)
            self.memory, self.bytes = engine.experts.host_memory, engine.experts.host_bytes
        self.all = self.bytes.pinned + self.bytes.pageable
        assert self.stats.uploads > 0
        assert self.stats.bytes_moved["prompt_uploads"] > 0


@pytest.fixture(scope="module")
def staged():
    """Return a run on the default simulated device. Its driver registers no memory, and no note says so."""
    run = Run()
    assert (run.memory, run.bytes.pinned, run.bytes.why, run.notes) == ("staged", 0, "", [])
    return run


@pytest.mark.parametrize(
    ("settings", "env", "options", "found", "least", "most", "said"),
    [
        ({"pin_limit_mb": 64}, {}, {}, ("pinned mapping", ""), -PAGES, 0, ""),
        ({"pin_limit_mb": 0}, {}, {}, ("staged", "refused"), 0, 0, "none of .* simulated refused it"),
        ({"pin_limit_mb": 6}, {}, {}, ("partly pinned", "refused"), 4 << 20, 6 << 20, "only 5.*refused more"),
        ({"pin_limit_mb": 6, "delay_us": 50, "upload_gb_s": 0.2}, {}, {}, ("partly pinned", "refused"),
         4 << 20, 6 << 20, "refused more"),
        ({"pin_limit_mb": 64}, {"SPAC_PIN_LIMIT": "3M"}, {}, ("partly pinned", "limit"), 2 << 20, 3 << 20,
         "SPAC_PIN_LIMIT allows 3.0 MiB"),
        ({"pin_limit_mb": 64}, {"SPAC_FORM": "no-pinned"}, {}, ("staged", "off"), 0, 0, ""),
        ({}, {"SPAC_FORM": "no-pinned"}, {"load_mode": "none"}, ("staged", "off"), 0, 0, ""),
        ({}, {}, {"load_mode": "none"}, ("pinned", ""), 0, 0, ""),
        ({}, {"SPAC_PIN_LIMIT": "1M"}, {"load_mode": "none"}, ("staged", "limit"), 0, 0, "SPAC_PIN_LIMIT"),
    ],
    ids=["all", "none", "some", "some, slowly", "a limit", "off", "off, copied", "copied", "a limit, copied"],
)  # fmt: skip
def test_the_driver_pins_all_or_a_part(staged, monkeypatch, settings, env, options, found, least, most, said):
    """Some copies come from pinned memory, some from the ring, and some from both. Bytes are of all pinned
    ones, or of those that are not where all are."""
    pinnable(monkeypatch, **settings)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    run = Run(**options)
    assert (run.memory, run.bytes.why, run.text) == (*found, staged.text)
    assert least <= (-run.bytes.pageable if found[1] == "" else run.bytes.pinned) <= most
    assert run.all == staged.all or options
    assert len(run.notes) == bool(said)
    assert not said or re.search(said, run.notes[0])


def test_models_share_what_there_is(tiny_model, monkeypatch):
    """Models share the limit of pinned memory. A freed model returns its share."""
    target = tiny_model("qwen3moe", n_layer=8, n_embd=256, n_head=8, n_expert=8, n_ff_exp=128)  # 28 MiB
    pinnable(monkeypatch, pin_limit_mb=64)
    monkeypatch.setenv("SPAC_PIN_LIMIT", "36M")

    def pinned(engine: Engine) -> int:
        assert engine.experts is not None
        return engine.experts.host_bytes.pinned >> 20

    with Engine(config(target)) as first:
        assert pinned(first) == 23
        with Engine(config(target)) as second:
            assert 4 <= pinned(second) < 12
            assert len(notes(second)) == 1
    with Engine(config(target)) as third:
        assert pinned(third) == 23
        assert notes(third) == []


ACROSS = """
import ctypes
from spac import _core, _library
library = ctypes.CDLL(str(_library.library_path()))
register = library["_ZN4spac18simulated_registerEPvm"]
check = library["_ZN4spac22simulated_check_sourceEPKvm"]
register.argtypes = check.argtypes = ctypes.c_void_p, ctypes.c_size_t
register.restype = ctypes.c_bool
_core.set_simulated_device(pin_limit_mb=1)
assert register(0x10000, 0x1000) and register(0x11000, 0x1000) and not register(0x11800, 0x1000)
for begin, n_bytes in ((0x10000, 0x1000), (0x11000, 0x1000), (0x12000, 0x1000)):
    check(begin, n_bytes)
print("so far", flush=True)
check({begin}, 0x1000)
"""


def test_the_simulated_notices_copies_across_a_border():
    """The simulated device ends the process at such a copy, as CUDA does. The tests above make none."""
    code = ACROSS.format(begin=0x11800)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.startswith("so far\n"), done.stderr
    assert "registered in part" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(("text", "n_bytes"), [("64G", 64 << 30), ("8GB", 8 * 10**9), ("0", 0), ("", None)])
def test_limits_are_sizes(text, n_bytes, monkeypatch):
    monkeypatch.setenv("SPAC_PIN_LIMIT", text)
    assert pinning.limit() == n_bytes
    monkeypatch.setenv("SPAC_PIN_LIMIT", "50%")
    with pytest.raises(InputError, match="SPAC_PIN_LIMIT: '50%' is not a size"):
        pinning.limit()


def test_wsl2_pins_half_of_the_memory(monkeypatch):
    assert pinning.limit() is None
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    monkeypatch.setattr("spac.machine.host_memory.sizes", lambda: (8 << 30, 16 << 30))
    assert pinning.limit() == 8 << 30
    assert pinning.outlook([]) == ("up to 8.0 GiB", "")
    monkeypatch.setenv("SPAC_PIN_LIMIT", "12G")
    assert pinning.limit() == 12 << 30
    monkeypatch.setenv("SPAC_FORM", "no-pinned")
    assert pinning.outlook([]) == ("off", "SPAC_FORM switches it off: uploads are slower")
