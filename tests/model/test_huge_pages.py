"""Models on pages of 2 MB: which files are copied, that results stay, and what users see."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import spac.demo as demo
from spac.config import EngineConfig
from spac.engine import Engine
from spac.engine.costs_in_use import setup_of
from spac.engine.prompt_cache import cache_bytes
from spac.errors import InputError
from spac.machine import host_memory
from spac.model import huge_pages
from spac.model.devices import choose_device
from spac.model.gguf.check import check_model
from spac.model.huge_pages import Copying, obstacle
from spac.model.params import LOAD_MODES
from tests.engine.conftest import config as usual
from tests.model.gguf.files import split

MIB = 1 << 20
GIB = 1 << 30
NAMES = ("target.gguf", "draft.gguf")


@pytest.fixture(autouse=True)
def offered(monkeypatch):
    """Pretend that the system has transparent huge pages. Without, regions are the same on small pages."""
    monkeypatch.setattr(huge_pages, "missing", lambda: "")


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    return usual(target, **{"device": "cpu", "ctx": 256, "draft_length": 0, "slots": 12, **options})


def mapped(name: str) -> bool:
    return any(line.endswith(name) for line in Path("/proc/self/maps").read_text().splitlines())


def copied_regions() -> set[str]:
    """Return the addresses of anonymous, read-only memory regions of more than 1 MiB."""
    found = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        match = re.fullmatch(r"(\w+)-(\w+) r--p \w+ 00:00 0 *(\[anon.*\])?", line.strip())
        if match and int(match[2], 16) - int(match[1], 16) > MIB:
            found.add(match[1])
    return found


def policy(address: str) -> str:
    """Return the policy that the system reports for the memory at an address."""
    for line in Path("/proc/self/numa_maps").read_text().splitlines():
        begin, chosen, *_ = line.split()
        if int(begin, 16) == int(address, 16):
            return chosen
    raise AssertionError("the system does not list the region")


def may_place_memory() -> bool:
    """Return True if the system lets this process choose nodes. Containers may refuse it."""
    number = {"x86_64": 237, "aarch64": 235}.get(platform.machine())
    if number is None or not Path("/proc/self/numa_maps").exists():
        return False
    page = os.sysconf("SC_PAGE_SIZE")
    area, interleave, mask = mmap.mmap(-1, page), 3, ctypes.c_ulong(1)
    address = ctypes.addressof(ctypes.c_char.from_buffer(area))
    call = ctypes.CDLL(None, use_errno=True).syscall
    return (
        call(number, ctypes.c_void_p(address), ctypes.c_ulong(page), interleave, ctypes.byref(mask), 65, 0)
        == 0
    )


def notes(engine: Engine) -> list[str]:
    return [note for note in engine.notes if "pages" in note]


def text(engine: Engine, n: int = 24) -> str:
    return "".join(engine.generate("def add(a, b):\n", n))


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_texts_are_equal_and_the_copy_goes_with_the_model(device):
    options: dict[str, Any] = {"device": device, "draft": demo.DRAFT, "draft_length": 3}
    before = copied_regions()
    with Engine(config(**options, huge_pages="off")) as engine:
        expected = text(engine)
        assert all(mapped(name) for name in NAMES)
        assert engine._pair.copied == []
        assert notes(engine) == []
    with Engine(config(**options, huge_pages="on")) as engine:
        assert text(engine) == expected
        assert not any(mapped(name) for name in NAMES)
        assert len(copied_regions() - before) >= 1
        assert engine._pair.copied == [engine._pair.target, engine._pair.draft]
        assert "2 MB pages" in setup_of(engine._pair)
        for note, name in zip(notes(engine), NAMES, strict=True):
            assert note.startswith(f"{name}: ")
            assert " MiB were copied in " in note
    assert copied_regions() == before


@pytest.mark.parametrize("gpu_layers", ["all", 3])
def test_the_copy_is_pinned_like_a_mapping(gpu_layers, monkeypatch):
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "pin_limit_mb=64")
    found = []
    for wanted in ("off", "on"):
        options: dict[str, Any] = {"device": "simulated", "gpu_layers": gpu_layers, "stream_batch": 32}
        with Engine(config(**options, huge_pages=wanted)) as engine:
            assert engine.experts is not None
            generation = engine.generate("def add(a, b):\n" * 8, 24)
            found.append(("".join(generation), engine.experts.host_memory, engine.experts.host_bytes.pinned))
            assert generation.stats.uploads > 0
            assert generation.stats.bytes_moved["prompt_uploads"] > 0
    assert found[0] == found[1]
    assert found[0][1] == "pinned mapping"


def test_parts_are_copied_one_by_one(tmp_path):
    parts = split(demo.TARGET, tmp_path, "model")
    with Engine(config(huge_pages="off")) as engine:
        expected = text(engine)
    seen: list[float] = []
    wanted = config(parts[0], huge_pages="on")
    with Engine(wanted, progress=lambda _, done: seen.append(done) or True) as engine:
        assert text(engine) == expected
        assert not mapped(parts[-1].name)
        assert len(notes(engine)) == 1
    assert seen == sorted(seen)
    assert 0 <= seen[0] < seen[-1] == 1  # a small part may be copied before the first report


def test_progress_can_stop_the_copy():
    before = copied_regions()

    def impatient(_path: Path, _done: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Engine(config(huge_pages="on"), progress=impatient)
    with pytest.raises(InputError, match="could not load the model"):
        Engine(config(huge_pages="on"), progress=lambda *_: False)
    assert copied_regions() == before


def test_what_cannot_be_copied_is_mapped(tmp_path):
    """The system refuses memory for the copy: the process may have 128 MiB more, and the file has 256."""
    path = tmp_path / "long.gguf"
    shutil.copyfile(demo.TARGET, path)
    os.truncate(path, 256 * MIB)
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, str(path)], capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == ["0 Cannot allocate memory", "True"], done.stderr


REFUSED = """
import re, resource, sys
from pathlib import Path
from spac import _core
from spac.model.c_api import Model
copies = _core.HugeCopies(1, [], lambda _: True)
data = int(re.search(r"VmData:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (data + (128 << 20), resource.RLIM_INFINITY))
with _core.LoadScope(copies=copies):
    model = Model(Path(sys.argv[1]), [], {})
print(copies.bytes, copies.failure)
print("long.gguf" in Path("/proc/self/maps").read_text())
model.close()
"""


@pytest.mark.skipif(not may_place_memory(), reason="this system lets no process choose NUMA nodes")
@pytest.mark.parametrize(("nodes", "expected"), [([0], "interleave:0"), ([1000], "default")])
def test_pages_are_spread_over_nodes(nodes, expected, monkeypatch):
    before = copied_regions()
    monkeypatch.setattr(huge_pages, "shared_nodes", lambda _: nodes)
    with Engine(config(huge_pages="on")) as engine:
        assert text(engine, 2)
        found = {policy(address) for address in copied_regions() - before}
    assert found == {expected}


def test_prompts_have_what_the_copy_leaves(monkeypatch):
    for wanted in ("off", "on"):
        with Engine(config(huge_pages=wanted)) as engine:
            needed = engine._pair.target.n_bytes
            monkeypatch.setattr("spac.engine.prompt_cache.available", lambda needed=needed: needed + 2000)
            found = cache_bytes(engine.config, engine._pair)
        assert found == (1000 if wanted == "off" else 1000 + needed // 2)


@pytest.mark.parametrize(
    ("options", "available", "params", "why"),
    [
        ({}, 64 * GIB, {}, ""),
        ({"device": "cpu"}, 5 * GIB, {}, ""),
        ({"paged": True}, 64 * GIB, {}, "paging leaves the experts in the file"),
        ({"load_mode": "none"}, 64 * GIB, {}, "load mode none maps no file"),
        ({}, 64 * GIB, {"load_mode": LOAD_MODES["none"]}, "maps no file"),
        ({}, 5 * GIB, {}, "a copy of 4.0 GiB does not fit"),  # for there is a dense part of 1 GiB beside it
        ({"is_draft": True}, 5 * GIB, {}, ""),
    ],
)
def test_what_prevents_a_copy(options, available, params, why, monkeypatch):
    monkeypatch.setattr(host_memory, "available", lambda: available)
    info = replace(check_model(demo.TARGET), file_size=4 * GIB, expert_bytes=3 * GIB)
    of_load = {name: options.pop(name, False) for name in ("paged", "is_draft")}
    wanted = config(**{"device": "simulated", "slots": 0, "huge_pages": "on", **options})
    assert why in (found := obstacle(wanted, info, params, choose_device(wanted.device), **of_load))
    assert bool(found) == bool(why)


def test_what_the_system_offers(tmp_path, monkeypatch):
    monkeypatch.setattr(huge_pages, "missing", lambda: "the system has no transparent huge pages")
    with Engine(config(huge_pages="on")) as engine:
        assert mapped("target.gguf")
        small = "target.gguf: its weights stay on small pages: "
        assert notes(engine) == [small + "the system has no transparent huge pages"]
    copying = Copying(check_model(demo.TARGET), None, copies=True, obstacle="")
    assert copying.notes() == [small + "llama.cpp mapped no file"]
    monkeypatch.undo()
    monkeypatch.setattr(huge_pages, "_SETTINGS", tmp_path)
    size = tmp_path / "hugepages-2048kB"
    size.mkdir()
    assert huge_pages.missing() == "the system has no transparent huge pages"
    for enabled, of_size, found in (
        ("always [madvise] never", None, ""),
        ("[always] madvise never", "always [inherit] madvise never", ""),
        ("always madvise [never]", "always [inherit] madvise never", "are off"),
        ("always madvise [never]", "always inherit [madvise] never", ""),
        ("[always] madvise never", "always inherit madvise [never]", "are off"),
    ):
        (tmp_path / "enabled").write_text(enabled)
        (size / "enabled").unlink(missing_ok=True)
        if of_size is not None:
            (size / "enabled").write_text(of_size)
        assert (found in huge_pages.missing()) if found else huge_pages.missing() == ""
