"""What a session on a machine with a GPU rests on, as far as no GPU is needed."""

from __future__ import annotations

import argparse
import json
import struct
import sys
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from bench.gpu_suite import facts, modules, pack, smoke
from bench.gpu_suite.course import Course
from bench.gpu_suite.fatbin import machine_code_only
from bench.gpu_suite.keeper import Keeper


def binary(*entries: tuple[int, bytes]) -> bytes:
    """A fat binary with entries of (kind, content)."""
    body = b"".join(struct.pack("<HHIQ", kind, 0x101, 24, len(content)) + b"headmore" + content
                    for kind, content in entries)  # fmt: skip
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def test_a_fat_binary_loses_its_intermediate_code() -> None:
    both = binary((1, b"intermediate...."), (2, b"machine code 16b"))
    code = binary((2, b"machine code 16b"))
    assert machine_code_only(both) == code
    assert machine_code_only(code) == code
    assert machine_code_only(both + b"\0" * 8 + both) == code + b"\0" * 8 + code
    for wrong in (binary((1, b"intermediate....")), b"something else..", both[:-8]):
        with pytest.raises(ValueError, match="fat binary"):
            machine_code_only(wrong)


@pytest.mark.parametrize(
    ("wheel", "version", "fits"),
    [
        ("tqdm-4.70.1-py3-none-any.whl", (3, 13), True),
        ("six-1.16.0-py2.py3-none-any.whl", (3, 11), True),
        ("cffi-2.1.1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (3, 12), True),
        ("cffi-2.1.1-cp312-cp312-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", (3, 11), False),
        ("thing-1.0-cp39-abi3-manylinux_2_28_x86_64.whl", (3, 12), True),
        ("thing-1.0-cp313-abi3-manylinux_2_28_x86_64.whl", (3, 12), False),
        ("thing-1.0-cp312-cp312-macosx_11_0_arm64.whl", (3, 12), False),
        ("no wheel", (3, 12), False),
    ],
)
def test_wheels_are_chosen_by_their_names(wheel: str, version: tuple[int, int], fits: bool) -> None:
    assert modules.fits(wheel, version) is fits


def test_missing_modules_come_from_wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        modules, "NEEDED", {"json": "json", "not_there_yet": "not_there_yet", "nowhere": "nowhere"}
    )
    monkeypatch.setattr(sys, "path", [*sys.path])
    with zipfile.ZipFile(tmp_path / "not_there_yet-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("not_there_yet.py", "value = 7\n")
    assert modules.install(tmp_path, tmp_path / "site") == ["nowhere"]
    assert sys.path[0] == str(tmp_path / "site")
    assert (tmp_path / "site" / "not_there_yet.py").is_file()


def test_a_session_goes_on_from_its_archive(tmp_path: Path) -> None:
    """What one call found is there for the next one, on another machine; an older archive changes nothing."""
    archive = tmp_path / "out" / "state.tar.gz"
    with Keeper(tmp_path / "one", archive, tmp_path / "none") as first:
        (first.work / "compare" / "cells").mkdir(parents=True)
        (first.work / "compare" / "cells" / "a.json").write_text("1")
        (first.work / "build").mkdir()
        (first.work / "build" / "large.o").write_text("not kept")
        first.note("smoke", code=1)
        first.note("patches", code=3)
    with tarfile.open(archive) as content:
        assert set(content.getnames()) == {"done.json", "compare/cells/a.json"}
    second = Keeper(tmp_path / "two", tmp_path / "out2" / "state.tar.gz", archive)
    assert (second.ran("smoke"), second.ran("patches"), second.ran("other")) == (True, False, False)
    assert (second.work / "compare" / "cells" / "a.json").read_text() == "1"
    second.note("smoke", code=0)
    assert Keeper(tmp_path / "two", archive, archive).done["smoke"]["code"] == 0


def course(tmp_path: Path, **more: object) -> Course:
    values: dict[str, object] = {name: tmp_path / name for name in ("out", "work", "carry")}
    values |= {"device": "CUDA0", "model": "tiny", "seconds": 60.0, "jobs": 1, "quick": True}
    return Course(argparse.Namespace(**{**values, **more}))


def test_parts_keep_their_time_and_their_results(tmp_path: Path) -> None:
    subject = course(tmp_path)
    subject.environment["PYTHONPATH"] = str(tmp_path)
    texts = {"good": "print('well')", "bad": "raise SystemExit('ill')", "slow": "import time; time.sleep(60)"}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert subject.command("good", 30, "good", keep=True) == 0
    assert subject.command("bad", 30, "bad", keep=True) == 1
    assert subject.command("slow", 2.5, "slow", keep=True) == 3
    assert (subject.failed, subject.unfinished) == (["bad"], ["slow"])
    assert "ill" in (tmp_path / "out" / "session.txt").read_text()
    later = course(tmp_path)
    (tmp_path / "bad.py").write_text("")
    assert later.command("bad", 30, "bad", keep=True) == 1  # not run again
    late = course(tmp_path, seconds=3.0)
    assert late.command("good now", 30, "good") == 3
    assert late.unfinished == ["good now"]


@pytest.mark.parametrize(
    ("kernels", "forms", "chosen"),
    [
        (
            True,
            {
                "split, 25 %, masks": 0.0,
                "split, 25 %, masks, ahead": 0.0,
                "split, 25 %, masks, ahead, looking ahead": 0.0,
            },
            ("1", "1", "1"),
        ),
        (True, {"split, 25 %, masks": 0.0, "split, 25 %, masks, ahead": 1.0}, ("1", "0", "0")),
        (
            True,
            {
                "split, 25 %, masks": 1.0,
                "split, 25 %, ahead": 1e-4,
                "split, 25 %, looking ahead": 0.0,
            },
            ("0", "1", "1"),
        ),
        (
            False,
            {"split, 25 %, masks": 0.0, "split, 25 %": 0.0, "split, 25 %, looking ahead": 1.0},
            ("0", "0", "0"),
        ),
    ],
)
def test_only_what_was_right_is_used(
    tmp_path: Path, kernels: bool, forms: dict[str, float], chosen: tuple[str, str, str]
) -> None:
    subject = course(tmp_path)
    rows = [{"name": name, "fault": "", "error": error} for name, error in forms.items()]
    (subject.work / "smoke.json").write_text(json.dumps(rows))
    (subject.work / "patches").mkdir()
    failures = [] if kernels else ["q4_K: wrong"]
    (subject.work / "patches" / "twin-types.json").write_text(json.dumps({"types": [{"failures": failures}]}))
    subject.choose_form()
    names = "SPAC_DEVICE_MASKS", "SPAC_LAUNCH_AHEAD", "SPAC_LOOKAHEAD"
    assert tuple(subject.environment[name] for name in names) == chosen


def test_facts_never_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "WRITTEN", 1 << 20)
    found = dict(line.split(": ", 1) for line in facts.lines(tmp_path))
    assert {"processor", "memory", "gpu", "cuBLAS", "python", "disk"} <= set(found)
    assert "usable" in found["processor"]


def test_smoke_sees_a_wrong_form() -> None:
    """The split equals plain llama.cpp on the stand-in; exchanged experts are far beyond the bound."""
    from spac import _core

    forms = {form.name: form for form in smoke.FORMS}
    wanted = smoke.compute(forms["plain, on the CPU"], "stand-in", 1)
    split = smoke.compute(forms["split, 25 %, masks"], "stand-in", 1)
    assert smoke.error(split, wanted) == 0
    _core.set_fault("swap-slots")
    try:
        assert smoke.error(smoke.compute(forms["split, 25 %, masks"], "stand-in", 1), wanted) > smoke.BOUND
    finally:
        _core.set_fault("")
    assert smoke.error(np.full_like(wanted, np.nan), wanted) == float("inf")


def test_archives_travel_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "PART", 10)
    (tmp_path / "cuda.tar.xz").write_bytes(bytes(range(25)))
    pack.split(tmp_path / "cuda.tar.xz", tmp_path)
    (tmp_path / "cuda.tar.xz").unlink()
    assert sorted(path.stat().st_size for path in tmp_path.iterdir()) == [5, 10, 10]
    pack.join(tmp_path, tmp_path / "cuda.tar.xz")
    assert (tmp_path / "cuda.tar.xz").read_bytes() == bytes(range(25))
    pack.join(tmp_path / "none", tmp_path / "other")
    assert not (tmp_path / "other").exists()
