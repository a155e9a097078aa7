"""The device's driver pins all, a part or none of the experts. Notes tell how many. Results stay the same."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import spac.demo as demo
from spac import _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError
from spac.model import pinning
from tests.cli.conftest import environment
from tests.conftest import TinyModel

PAGES = 3 * 4096
"""Bytes at the ends of a mapping. These pages hold other data too and stay pageable."""
PROMPT = "Once upon a time there was a small fox who lived in the wood. " * 8


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(pinning, "SLICE", 256 << 10)
    monkeypatch.delenv("SPAC_FORM", raising=False)
    monkeypatch.delenv("SPAC_PIN_LIMIT", raising=False)
    yield
    _core.set_simulated_device()
    _core.set_pinning()


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
    defaults = {"device": "simulated", "slots": "30%", "scheduler": "lru", "threads": 1, "ctx": 512}
    return EngineConfig(target=target, **{**defaults, "draft_length": 0, "sampling": sampling, **options})


def pinnable(monkeypatch: pytest.MonkeyPatch, n_mib: int, **settings: float) -> None:
    """Set a driver that registers up to `n_mib` MiB of host memory."""
    pairs = {"pin_limit_mb": n_mib, **settings}
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
def staged() -> Run:
    """Return a run on the default simulated device. Its driver registers no memory, and no note says so."""
    run = Run()
    assert (run.memory, run.bytes.pinned, run.bytes.why, run.notes) == ("staged", 0, "", [])
    return run


def test_all_are_pinned(staged: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pinnable(monkeypatch, 64)
    run = Run()
    assert (run.memory, run.bytes.why, run.notes) == ("pinned mapping", "", [])
    assert run.all == staged.all
    assert run.bytes.pageable <= PAGES
    assert run.text == staged.text


def test_a_driver_that_refuses(staged: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pinnable(monkeypatch, 0)
    run = Run()
    assert (run.memory, run.bytes.pinned, run.bytes.why) == ("staged", 0, "refused")
    assert run.text == staged.text
    [note] = run.notes
    assert "none of its experts" in note
    assert "the driver of simulated refused it" in note
    assert "they are copied through a staging buffer" in note


@pytest.mark.parametrize("late", [{}, {"delay_us": 50, "upload_gb_s": 0.2}], ids=["fast", "slow"])
def test_a_driver_that_stops_in_the_middle(
    staged: Run, late: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some copies come from pinned memory, some from the ring, and some from both."""
    pinnable(monkeypatch, 6, **late)
    run = Run()
    assert (run.memory, run.bytes.why) == ("partly pinned", "refused")
    assert 4 << 20 < run.bytes.pinned < 6 << 20
    assert run.all == staged.all
    assert run.text == staged.text
    [note] = run.notes
    assert note.startswith("target.gguf: only 5.")
    assert "refused more" in note


def test_a_limit(staged: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pinnable(monkeypatch, 64)
    monkeypatch.setenv("SPAC_PIN_LIMIT", "3M")
    run = Run()
    assert (run.memory, run.bytes.why) == ("partly pinned", "limit")
    assert 2 << 20 < run.bytes.pinned <= 3 << 20
    assert run.text == staged.text
    [note] = run.notes
    assert "SPAC_PIN_LIMIT allows 3.0 MiB" in note


def test_it_can_be_switched_off(staged: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pinnable(monkeypatch, 64)
    monkeypatch.setenv("SPAC_FORM", "no-pinned")
    run = Run()
    assert (run.memory, run.bytes.pinned, run.bytes.why, run.notes) == ("staged", 0, "off", [])
    assert run.text == staged.text
    unmapped = Run(load_mode="none")
    assert (unmapped.bytes.pinned, unmapped.bytes.why) == (0, "off")
    assert unmapped.text == staged.text


def test_without_a_mapping(staged: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(load_mode="none")
    assert (run.memory, run.bytes.pageable, run.bytes.why, run.notes) == ("pinned", 0, "", [])
    assert run.text == staged.text
    monkeypatch.setenv("SPAC_PIN_LIMIT", "1M")
    limited = Run(load_mode="none")
    assert (limited.memory, limited.bytes.pinned, limited.bytes.why) == ("staged", 0, "limit")
    assert limited.text == staged.text


def test_models_share_what_there_is(tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Models share the limit of pinned memory. A freed model returns its share."""
    target = tiny_model("qwen3moe", n_layer=8, n_embd=256, n_head=8, n_expert=8, n_ff_exp=128)  # 28 MiB
    pinnable(monkeypatch, 64)
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


def test_what_is_paged_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    pinnable(monkeypatch, 64)
    run = Run(paging="on")
    assert (run.memory, run.bytes.pinned, run.bytes.why) == ("paged", 0, "")


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


@pytest.mark.parametrize("begin", [0xF800, 0x10800, 0x11800], ids=["before", "between", "behind"])
def test_the_simulated_notices_copies_across_a_border(begin: int) -> None:
    """The simulated device ends the process at such a copy, as CUDA does. The tests above make none."""
    code = ACROSS.format(begin=begin)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert done.stdout.startswith("so far\n"), done.stderr
    assert "registered in part" in done.stderr
    assert done.returncode != 0


@pytest.mark.parametrize(
    ("text", "n_bytes"), [("64G", 64 << 30), ("8GB", 8 * 10**9), ("1000", 1000), ("0", 0), ("", None)]
)
def test_limits_are_sizes(text: str, n_bytes: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAC_PIN_LIMIT", text)
    assert pinning.limit() == n_bytes


def test_limits_that_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAC_PIN_LIMIT", "50%")
    with pytest.raises(InputError, match="SPAC_PIN_LIMIT: '50%' is not a size"):
        pinning.limit()


def test_wsl2_pins_half_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pinning.limit() is None
    monkeypatch.setattr("platform.release", lambda: "5.15.167.4-microsoft-standard-WSL2")
    monkeypatch.setattr("spac.machine.host_memory.sizes", lambda: (8 << 30, 16 << 30))
    assert pinning.limit() == 8 << 30
    assert pinning.outlook([]) == ("up to 8.0 GiB", "")
    monkeypatch.setenv("SPAC_PIN_LIMIT", "12G")
    assert pinning.limit() == 12 << 30
    monkeypatch.setenv("SPAC_FORM", "no-pinned")
    assert pinning.outlook([]) == ("off", "SPAC_FORM switches it off: uploads are slower")
