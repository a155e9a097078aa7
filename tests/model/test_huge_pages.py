"""Models on pages of 2 MB: which parts are copied and when, that results stay, and what users see."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import spac.demo as demo
from spac import Llama, _core
from spac.config import EngineConfig, SamplingConfig
from spac.engine import Engine
from spac.engine.prompt_cache import cache_bytes
from spac.errors import InputError
from spac.machine import host_memory
from spac.model import huge_pages
from spac.model.c_api import Context, Model
from spac.model.devices import choose_device
from spac.model.gguf.check import check_model
from spac.model.huge_pages import Choice, Copying
from spac.model.params import LOAD_MODES
from tests.model.gguf.files import split

MIB = 1 << 20
GIB = 1 << 30
NAMES = ("target.gguf", "draft.gguf")


@pytest.fixture(autouse=True)
def offered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend that the system has transparent huge pages. Without, regions are the same on small pages."""
    monkeypatch.setattr(huge_pages, "missing", lambda: "")


def config(target: Path = demo.TARGET, **options: Any) -> EngineConfig:
    sampling = SamplingConfig(temp=0.0, seed=1, ignore_eos=True)
    defaults = {"device": "cpu", "threads": 1, "ctx": 256, "draft_length": 0, "slots": 12}
    return EngineConfig(target=target, **{**defaults, "sampling": sampling, **options})


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


def notes(engine: Engine) -> list[str]:
    return [note for note in engine.notes if "pages" in note]


def text(engine: Engine, n: int = 24) -> str:
    return "".join(engine.generate("def add(a, b):\n", n))


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_texts_are_equal_and_the_copy_goes_with_the_model(device: str) -> None:
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
        assert "2 MB pages" in engine._pair.setup
        for note, name in zip(notes(engine), NAMES, strict=True):
            assert note.startswith(f"{name}: ")
            assert " MiB were copied in " in note
    assert copied_regions() == before


def logits(path: Path, device: str, copies: _core.HugeCopies | None) -> Any:
    """Compute the logits of three tokens as a plain context gives them."""
    from llama_cpp import llama_cpp as api

    devices = [] if device == "cpu" else [_core.device_handle(device)]
    with _core.LoadScope(copies=copies):
        model = Model(path, devices, {})
    context = Context(model, {"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1})
    try:
        tokens = (api.llama_token * 3)(5, 6, 7)
        assert api.llama_decode(context.pointer, api.llama_batch_get_one(tokens, 3)) == 0
        n_vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model.pointer))
        return np.ctypeslib.as_array(api.llama_get_logits_ith(context.pointer, -1), (n_vocab,)).copy()
    finally:
        context.close()
        model.close()


@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_logits_are_equal(device: str) -> None:
    copies = _core.HugeCopies(2, True, 0.0, 10**9, 10**9, 1)
    expected = logits(demo.TARGET, device, None)
    assert np.array_equal(logits(demo.TARGET, device, copies), expected)
    assert copies.bytes == demo.TARGET.stat().st_size


@pytest.mark.parametrize("gpu_layers", ["all", 3])
def test_the_copy_is_pinned_like_a_mapping(gpu_layers: str | int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAC_SIMULATED_DEVICE", "pin_limit_mb=64")
    found = []
    try:
        for wanted in ("off", "on"):
            options: dict[str, Any] = {"device": "simulated", "gpu_layers": gpu_layers, "stream_batch": 32}
            with Engine(config(**options, huge_pages=wanted)) as engine:
                assert engine.experts is not None
                generation = engine.generate("def add(a, b):\n" * 8, 24)
                found.append(
                    ("".join(generation), engine.experts.host_memory, engine.experts.host_bytes.pinned)
                )
                assert generation.stats.uploads > 0
                assert generation.stats.bytes_moved["prompt_uploads"] > 0
    finally:
        _core.set_simulated_device()
    assert found[0] == found[1]
    assert found[0][1] == "pinned mapping"


def test_parts_are_copied_one_by_one(tmp_path: Path) -> None:
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
    assert huge_pages._largest_part(parts[0]) == max(parts, key=lambda part: part.stat().st_size)
    assert huge_pages._largest_part(demo.TARGET) == demo.TARGET


def test_apps_have_it_too() -> None:
    options: dict[str, Any] = {"slots": 12, "n_ctx": 256, "verbose": False, "device": "simulated"}
    texts = []
    for wanted in ("on", "off"):
        llm = Llama(str(demo.TARGET), **options, huge_pages=wanted)
        try:
            texts.append(llm.create_completion("def", max_tokens=8, temperature=0)["choices"][0]["text"])
            assert mapped("target.gguf") is (wanted == "off")
        finally:
            llm.close()
    assert texts[0] == texts[1]


def test_progress_can_stop_the_copy() -> None:
    before = copied_regions()

    def impatient(_path: Path, _done: float) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Engine(config(huge_pages="on"), progress=impatient)
    with pytest.raises(InputError, match="could not load the model"):
        Engine(config(huge_pages="on"), progress=lambda *_: False)
    assert copied_regions() == before


def test_what_cannot_be_copied_is_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "choose", lambda *_, **__: Choice(True, gain=1.5, most_seconds=1e-9))
    monkeypatch.setattr("spac.model.pair.choose", huge_pages.choose)
    with Engine(config()) as engine:
        assert text(engine, 2)
        assert mapped("target.gguf")
        assert engine._pair.copied == []
        assert notes(engine) == ["target.gguf: its weights stay on small pages: the copy would take 0 s"]


def test_prompts_have_what_the_copy_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    for wanted in ("off", "on"):
        with Engine(config(huge_pages=wanted)) as engine:
            needed = engine._pair.target.n_bytes
            monkeypatch.setattr("spac.engine.prompt_cache.available", lambda needed=needed: needed + 2000)
            found = cache_bytes(engine.config, engine._pair)
        assert found == (1000 if wanted == "off" else 1000 + needed // 2)


# Decisions


Decide = Callable[..., Choice]


@pytest.fixture
def decide(monkeypatch: pytest.MonkeyPatch) -> Decide:
    """Decide for a model of 4 GiB, 3 of them experts. The arguments are the machine's figures."""

    def call(
        *,
        device: str = "simulated",
        is_draft: bool = False,
        paged: bool = False,
        available: int = 64 * GIB,
        gain: float = 1.5,
        huge_share: float = 1.0,
        missing: str = "",
        params: dict[str, Any] | None = None,
        **options: Any,
    ) -> Choice:
        info = replace(check_model(demo.TARGET), file_size=4 * GIB, expert_bytes=3 * GIB)
        rates = SimpleNamespace(gain=gain, bytes=128 * MIB, huge_bytes=int(huge_share * 128 * MIB))
        monkeypatch.setattr(host_memory, "available", lambda: available)
        monkeypatch.setattr(huge_pages, "missing", lambda: missing)
        monkeypatch.setattr(huge_pages, "read_rates", lambda *_: rates)
        wanted = config(**{"device": device, "slots": 0, "huge_pages": "auto", **options})
        return huge_pages.choose(
            wanted, info, params or {}, choose_device(device), paged=paged, is_draft=is_draft, n_threads=2
        )

    return call


def test_auto_copies_what_pays(decide: Decide) -> None:
    assert decide() == Choice(True, gain=1.5, most_seconds=pytest.approx(40.0))
    assert decide(device="cpu", params={"use_extra_bufts": False}).copy
    for silent in (
        {"device": "cpu"},  # the CPU has repacked experts
        {"is_draft": True},
        {"paged": True},
        {"params": {"load_mode": LOAD_MODES["none"]}},
        {"load_mode": "dio"},
        {"huge_pages": "off"},
    ):
        assert decide(**silent) == Choice(False), silent
    for given, why in (
        ({"missing": "transparent huge pages are off"}, "huge pages are off"),
        ({"available": 5 * GIB}, "a copy of 4.0 GiB does not fit"),
        ({"gain": 1.04}, "a copy would be read only 1.04 times as fast"),
        ({"huge_share": 0.1}, "the system had no pages of 2 MB"),
    ):
        choice = decide(**given)
        assert not choice.copy
        assert why in choice.why


def test_on_copies_what_it_can(decide: Decide) -> None:
    assert decide(huge_pages="on", gain=0.5) == Choice(True)
    assert decide(huge_pages="on", device="cpu").copy
    assert decide(huge_pages="on", is_draft=True).copy
    for given, why in (
        ({"paged": True}, "paging leaves the experts in the file"),
        ({"load_mode": "none"}, "load mode none maps no file"),
        ({"missing": "the system has no transparent huge pages"}, "no transparent huge pages"),
        ({"available": 5 * GIB}, "does not fit into memory"),
    ):
        choice = decide(huge_pages="on", **given)
        assert not choice.copy
        assert why in choice.why


def test_the_cache_goes_where_memory_does_not_hold_both(decide: Decide) -> None:
    assert not decide(available=11 * GIB).drop_cache  # twice 4 GiB and a dense part of 1 GiB are 9 GiB
    assert decide(available=10 * GIB).drop_cache
    assert decide(available=6 * GIB).copy
    assert not decide(available=5 * GIB).copy


def test_what_the_system_offers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_what_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    def noted(bytes_: int, huge: int, choice: Choice, *, stalled: bool = False) -> str:
        copying = Copying(check_model(demo.TARGET), choice)
        found = SimpleNamespace(bytes=bytes_, huge_bytes=huge, seconds=2.04, stalled=stalled, failure="")
        copying._copies = found  # type: ignore[assignment]
        [note] = copying.notes()
        return note

    measured = Choice(True, gain=1.5)
    assert noted(4 * GIB, 4 * GIB - MIB, measured) == (
        "target.gguf: 4.0 GiB were copied in 2.0 s to pages of 2 MB, which are read 1.50 times as fast as "
        "the mapping"
    )
    assert noted(4 * GIB, 4 * GIB, Choice(True)).endswith("to pages of 2 MB")
    assert noted(4 * GIB, GIB, Choice(True)) == (
        "target.gguf: 4.0 GiB were copied in 2.0 s, 1.0 GiB of them to pages of 2 MB; the system had no more"
    )
    assert noted(4 * GIB, GIB, Choice(True), stalled=True).endswith("the system took too long to find more")
    assert noted(0, 0, Choice(True)).endswith("stay on small pages: llama.cpp mapped no file")


def test_a_measurement_of_a_small_file_is_refused() -> None:
    info = check_model(demo.DRAFT)
    _, why = huge_pages.weigh(info, 2)
    assert why.startswith("the gain could not be measured (the file is too small")
    assert huge_pages.outlook(info, 2) == ("pages of 2 MB", "")
    assert huge_pages.outlook(None, 2) == ("pages of 2 MB", "")
    found, why = huge_pages.outlook(replace(info, file_size=GIB), 2)
    assert found == "pages of 2 MB"
    assert "could not be measured" in why


def test_what_doctor_says_of_a_model(decide: Decide) -> None:
    decide(gain=1.25)
    info = replace(check_model(demo.TARGET), file_size=4 * GIB)
    assert huge_pages.outlook(info, 2) == (
        "pages of 2 MB; a copy of target.gguf is read 1.25 times as fast as its mapping",
        "",
    )
    decide(missing="transparent huge pages are off")
    assert huge_pages.outlook(info, 2) == ("none", "transparent huge pages are off")
