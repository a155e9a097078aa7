"""Models whose experts exceed the memory: the decision, the parts that are read, and the messages."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from spac.config import EngineConfig
from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError
from spac.machine import host_memory
from spac.model import paging
from spac.model.devices import choose_device
from spac.model.gguf.check import check_model
from spac.model.gguf.header import read_header
from spac.model.paging import is_paged
from spac.scheduler import SchedulerChoice, make
from tests.conftest import TinyModel
from tests.engine.conftest import config as usual
from tests.engine.conftest import text_of

MIB = 1 << 20


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    """Return a model with 24 MiB of experts, of 384 KiB each."""
    return tiny_model("qwen3moe", n_layer=8, n_embd=256, n_head=8, n_expert=8, n_ff_exp=128)


def config(target: Path, **options: Any) -> EngineConfig:
    return usual(target, **{"slots": 0, "ctx": 256, "draft_length": 0, **options})


def text(engine: Engine, n: int = 32) -> str:
    return text_of(engine, [5, 6, 7], n)


def mapped(path: Path) -> int:
    """Return the bytes of the file that this process has touched and that are in memory."""
    n_bytes, inside, inode = 0, False, path.stat().st_ino
    for line in Path("/proc/self/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            inside = words[4] == str(inode)
        elif inside and words[0] == "Rss:":
            n_bytes += int(words[1]) << 10
    return n_bytes


def forget(path: Path) -> None:
    """Drop the file from the page cache. After a write, or a read without advice, the cache holds it in large
    pieces, and these are mapped as a whole."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_nothing_is_read_before_it_is_needed(target: Path) -> None:
    with Engine(config(target, paging="off")) as engine:
        assert engine.experts is not None
        assert engine.experts.host_memory == "staged"
        assert mapped(target) > 20 * MIB, "llama.cpp reads all of it"
        generation = engine.generate([5, 6, 7], 32)
        expected = "".join(generation)
        assert generation.stats.disk_bytes is None
        assert not generation.stats.paged
        assert "disk" not in generation.stats.table()
    forget(target)
    with Engine(config(target, paging="on")) as engine:
        assert engine.experts is not None
        assert engine.experts.host_memory == "paged"
        assert mapped(target) < 16 * MIB  # dense parts, and experts in the same pieces
        generation = engine.generate([5, 6, 7], 32)
        assert "".join(generation) == expected
        assert mapped(target) > 20 * MIB
        assert generation.stats.disk_bytes is not None
        assert generation.stats.paged
        assert "/token read from disk" in generation.stats.table()
    assert mapped(target) == 0


def test_slots_drafts_and_streams_work_with_it(target: Path, tiny_model: TinyModel) -> None:
    draft, prompt = tiny_model("qwen3"), [*range(5, 200)]
    options = {"draft": draft, "draft_length": 3, "slots": 16}
    found = []
    for paged in ("off", "on"):
        with Engine(config(target, **options, paging=paged, stream_batch=32)) as engine:
            found.append("".join(engine.generate(prompt, 24)))
            generation = engine.generate([5, 6, 7], 24)
            found.append("".join(generation))
            assert generation.stats.uploads > 0
            assert generation.stats.hit_rate
    assert found[:2] == found[2:]


def cached(path: Path) -> tuple[int, int]:
    """Return the bytes of dense weights and of experts that the system's cache holds, in whole pages."""
    found, header = [0, 0], read_header(path)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        view = np.frombuffer(data, np.uint8)
        pages = np.zeros(-(-len(view) // mmap.PAGESIZE), np.uint8)
        mincore = ctypes.CDLL(None, use_errno=True).mincore
        failed = mincore(
            ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(len(view)), ctypes.c_void_p(pages.ctypes.data)
        )
        del view
    assert not failed
    for tensor in header.tensors:
        first = -(-(header.data_offset + tensor.offset) // mmap.PAGESIZE)
        last = (header.data_offset + tensor.offset + tensor.n_bytes) // mmap.PAGESIZE
        found["_exps." in tensor.name] += int((pages[first:last] & 1).sum()) * mmap.PAGESIZE
    return found[0], found[1]


def test_weights_of_the_device_leave_the_memory(target: Path, tiny_model: TinyModel) -> None:
    """The system drops dense weights that the device holds, and keeps experts that were there before."""
    draft = tiny_model("qwen3", n_layer=6, n_embd=256, n_head=8, n_ff=512)
    for path in (target, draft):
        forget(path)
        path.read_bytes()
    (dense, experts), (of_draft, _) = cached(target), cached(draft)
    assert dense > MIB
    assert of_draft > MIB
    options = {"draft": draft, "draft_length": 2, "slots": 16}
    with Engine(config(target, **options, paging="off")) as engine:
        expected = text(engine)
        assert cached(target) >= (dense, experts)
    with Engine(config(target, **options, paging="on")) as engine:
        # The system keeps pieces that weights share with experts or with the table of tokens.
        left = cached(target)
        assert left[0] < dense / 3
        assert left[1] > 0.8 * experts
        assert cached(draft)[0] < of_draft / 3
        assert text(engine) == expected


def test_copies_are_to_be_worth_more(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SchedulerChoice] = []
    monkeypatch.setattr("spac.engine.expert_cache.make", lambda choice: made.append(choice) or make(choice))
    for options in (
        {"paging": "on"},
        {"paging": "on", "scheduler": "logistic:margin=0.1"},
        {"paging": "on", "scheduler_options": {"margin": 0.3}},
        {"paging": "on", "deterministic": True},
        {"paging": "on", "scheduler": "lru"},
        {"paging": "off"},
    ):
        with Engine(config(target, slots=16, **options)) as engine:
            assert text(engine, 2)
            assert engine.generate([5], 1).stats.lookahead == 0
    assert list(map(str, made)) == [
        "logistic:margin=0.4", "logistic:margin=0.1", "logistic:margin=0.3", "logistic", "lru", "logistic",
    ]  # fmt: skip


def decide(target: Path, device: str = "simulated", **options: Any) -> bool:
    return is_paged(config(target, device=device, **options), check_model(target), choose_device(device))


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return the machine's sizes of memory, which a test may change."""
    found = {"available": 0, "most": 64 * MIB, "swap": 0}
    for name in found:
        monkeypatch.setattr(host_memory, name, lambda name=name: found[name])
    monkeypatch.setattr(paging, "_in_memory", lambda _: False)
    return found


def test_when_experts_do_not_fit(target: Path, tiny_model: TinyModel, room: dict[str, int]) -> None:
    info = check_model(target)
    fits = info.file_size * 16 // 15 + 1024
    assert not decide(target), "a system that reports nothing"
    room["available"] = fits
    assert not decide(target)
    assert decide(target, slots="25%")  # the simulated device uses the machine's memory
    assert decide(target, slots="auto")
    draft = tiny_model("qwen3")
    assert decide(target, draft=draft, draft_length=2)
    assert not decide(target, draft="nowhere.gguf", draft_type="ngram-simple")
    assert not decide(target, "cpu")
    room["available"] = fits - 8192
    assert decide(target)
    assert not decide(target, paging="off")
    assert not decide(target, gpu_layers=0)
    assert not decide(target, "cpu", paging="on")
    assert not decide(draft, paging="on"), "no experts"
    room["available"] = 100 * fits
    assert decide(target, paging="on")


def test_experts_that_have_to_fit(target: Path, room: dict[str, int]) -> None:
    room.update(available=MIB, most=20 * MIB)
    with pytest.raises(
        OutOfMemoryError, match=r"24.0 MiB of experts do not fit into 20.0 MiB of memory: leave"
    ):
        decide(target, load_mode="none")
    assert not decide(target, load_mode="mmap+mlock"), "it stays a mapping where it cannot be locked"
    room["swap"] = 8 * MIB
    assert not decide(target, load_mode="mlock")
    with pytest.raises(InputError, match="paging on: experts stay in the file, which load mode dio"):
        decide(target, load_mode="dio", paging="on")


def test_a_file_in_memory_is_there(target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = tmp_path / "mounts"
    line = "35 24 0:31 / {} rw,nosuid shared:18 - {} none rw"
    monkeypatch.setattr(paging, "_MOUNTS", mounts)
    monkeypatch.setattr(host_memory, "available", lambda: MIB)
    mounts.write_text("\n".join([line.format("/", "ext4"), line.format(target.parent.resolve(), "tmpfs")]))
    assert not decide(target)
    mounts.write_text("\n".join([line.format("/", "tmpfs"), line.format(target.parent.resolve(), "ext4")]))
    assert decide(target)
    mounts.unlink()
    assert decide(target)


def test_it_is_noted(target: Path, room: dict[str, int]) -> None:
    room["available"] = 16 * MIB
    with Engine(config(target)) as engine:
        [note] = [note for note in engine.notes if "read from the file" in note]
        assert note == (
            f"{target.name}: memory (16.0 MiB available) does not hold all of its experts (24.0 MiB): they "
            "are read from the file as they are needed"
        )
