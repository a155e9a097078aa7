"""Models whose experts are more than memory may hold: when that is so, what is kept, and what is said."""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from spac import Llama, host_memory
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.errors import InputError, OutOfMemoryError
from spac.gguf_check import check_model
from spac.paging import expert_memory
from spac.pair import choose_device
from tests.conftest import TinyModel

MIB = 1 << 20
LIMIT = 8 * MIB


@pytest.fixture(scope="module")
def target(tiny_model: TinyModel) -> Path:
    """24 MiB of experts, of 384 KiB each: 21 of 64 fit into the limit."""
    return tiny_model("qwen3moe", n_layer=8, n_embd=256, n_head=8, n_expert=8, n_ff_exp=128)


def forget(path: Path) -> None:
    """Of what was written, or read without a word, the system keeps larger pieces than experts in memory, and
    maps them whole."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def config(target: Path, **options: Any) -> EngineConfig:
    sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
    defaults = {
        "device": "stand-in",
        "slots": 0,
        "threads": 1,
        "ctx": 256,
        "draft_length": 0,
        "sampling": sampling,
    }
    return EngineConfig(target=target, **{**defaults, **options})


def mapped(path: Path) -> int:
    """Bytes of the file that this process has in memory, in its mappings of it."""
    n_bytes, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            n_bytes += int(line.split()[1]) << 10
    return n_bytes


def least_mapped(path: Path, below: int) -> int:
    """What is mapped, once it is below that, or after some seconds: the pager works in the background."""
    for _ in range(200):
        if mapped(path) < below:
            break
        time.sleep(0.02)
    return mapped(path)


def text(engine: Engine, n: int = 48) -> str:
    return "".join(engine.generate([5, 6, 7], n))


def test_no_more_is_in_memory_than_may_be(target: Path) -> None:
    info = check_model(target)
    dense = info.file_size - info.expert_bytes + 4 * MIB  # and what lies in one piece with it
    with Engine(config(target)) as engine:
        assert engine.experts is not None
        assert engine.experts.host_memory == "staged"
        expected, stats = text(engine), engine.generate([5, 6, 7], 8)
        assert mapped(target) > 20 * MIB, "else the test shows nothing"
        assert stats.stats.disk_bytes is None
        assert "disk" not in stats.stats.table()
    forget(target)
    with Engine(config(target, ram_limit=LIMIT)) as engine:
        assert engine.experts is not None
        assert engine.experts.host_memory == "paged"
        assert mapped(target) < LIMIT, "it is read before it is needed"
        assert text(engine) == expected
        assert least_mapped(target, LIMIT + dense) < LIMIT + dense
        generation = engine.generate([5, 6, 7], 8)
        "".join(generation)
        assert generation.stats.disk_bytes is not None
        assert generation.stats.expert_memory == LIMIT
        assert "memory has 8.39 MB for experts" in generation.stats.table()
        [note] = [note for note in engine.notes if "read from the file" in note]
        assert note == (
            f"{target.name}: 8.0 MiB of memory do not hold its experts (24.0 MiB): they are read from the "
            "file as they are needed"
        )
    assert mapped(target) == 0


def test_slots_and_drafts_work_with_it(target: Path, tiny_model: TinyModel) -> None:
    draft = tiny_model("qwen3")
    with Engine(config(target)) as engine:
        expected = text(engine)
    options = {"draft": draft, "draft_length": 3, "slots": 4, "ram_limit": LIMIT}
    with Engine(config(target, **options)) as engine:
        assert text(engine) == expected
        generation = engine.generate([5, 6, 7], 16)
        "".join(generation)
        assert generation.stats.uploads >= 0
        assert generation.stats.hit_rate
        assert generation.stats.lookahead == 0
        assert generation.stats.scheduler_options == {"margin": 0.4}
    with Engine(config(target, **options, scheduler="logistic:margin=0.1")) as engine:
        assert text(engine, 4)
        assert engine.generate([5], 1).stats.scheduler_options == {"margin": 0.1}
    with Engine(config(target, slots=4)) as engine:
        assert engine.generate([5], 1).stats.scheduler_options == {}


def test_apps_have_it_too(target: Path) -> None:
    llm = Llama(str(target), slots=0, device="stand-in", n_ctx=256, ram_limit=LIMIT, verbose=False)
    try:
        assert any("read from the file" in note for note in llm.notes)
        assert llm.create_completion([5, 6, 7], max_tokens=4, temperature=0)["usage"]["completion_tokens"]
        assert llm.stats.expert_memory == LIMIT
    finally:
        llm.close()


def decide(target: Path, device: str = "stand-in", **options: Any) -> int:
    return expert_memory(config(target, device=device, **options), check_model(target), choose_device(device))


def test_when_experts_do_not_fit(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = check_model(target)
    dense = info.file_size - info.expert_bytes
    room = {"available": 0, "most": 0}
    monkeypatch.setattr(host_memory, "available", lambda: room["available"])
    monkeypatch.setattr(host_memory, "most", lambda: room["most"])
    assert decide(target) == 0, "a system that tells nothing"
    room.update(available=16 * MIB, most=64 * MIB)
    assert decide(target) == 14 * MIB - dense
    room["available"] = MIB // 1024
    assert decide(target) == 1
    room["available"] = 2 * info.file_size
    assert decide(target) == 0
    assert decide(target, ram_limit="8M") == 8 * MIB
    assert decide(target, ram_limit="25%") == 16 * MIB
    assert decide(target, ram_limit="25M") == 0
    room["available"] = MIB
    assert decide(target, "cpu") == 0
    room["most"] = 20 * MIB
    with pytest.raises(
        OutOfMemoryError, match=r"24.0 MiB of experts do not fit into 20.0 MiB of memory: leave out --load"
    ):
        decide(target, load_mode="none")
    room["most"] = 64 * MIB
    assert decide(target, load_mode="mlock") == 0
    with pytest.raises(InputError, match="--ram-limit: experts stay in the file"):
        decide(target, load_mode="none", ram_limit="8M")


def test_a_dense_model_is_not_paged(tiny_model: TinyModel) -> None:
    assert decide(tiny_model("qwen3"), ram_limit=1) == 0


@pytest.mark.parametrize("value", ["8", "x", "0G", "150%", 0, -5, 1.5])
def test_limits_that_are_none(target: Path, value: Any) -> None:
    with pytest.raises(InputError, match="ram_limit"):
        config(target, ram_limit=value)
