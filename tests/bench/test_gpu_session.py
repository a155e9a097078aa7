"""These tests cover the parts of a session on a machine with a GPU that can be tested without one."""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench.gpu_suite import facts, limit, modules, pack, smoke, twins
from bench.gpu_suite.course import LATE, Course
from bench.gpu_suite.fatbin import machine_code_only
from bench.gpu_suite.keeper import Keeper
from tools.models import exchange_experts

ROOT = Path(__file__).resolve().parents[2]


def binary(*entries: tuple[int, bytes]) -> bytes:
    """Return a fat binary with entries of (kind, content)."""
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
    """The next call finds the last one's results, also on another machine. An older archive changes
    nothing."""
    archive = tmp_path / "out" / "state.tar.gz"
    with Keeper(tmp_path / "one", archive, tmp_path / "none") as first:
        (first.work / "compare-H100" / "cells").mkdir(parents=True)
        (first.work / "compare-H100" / "cells" / "a.json").write_text("1")
        (first.work / "build").mkdir()
        (first.work / "build" / "large.o").write_text("not kept")
        first.note("smoke", code=1)
        first.note("patches", code=3)
        first.note("timeline", code=-11)  # a crash counts as run, because it would crash again
    with tarfile.open(archive) as content:
        assert set(content.getnames()) == {"done.json", "compare-H100/cells/a.json"}
    second = Keeper(tmp_path / "two", tmp_path / "out2" / "state.tar.gz", archive)
    assert (second.ran("smoke"), second.ran("patches"), second.ran("other")) == (True, False, False)
    assert second.ran("timeline")
    assert (second.work / "compare-H100" / "cells" / "a.json").read_text() == "1"
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
    assert later.command("bad", 30, "bad", keep=True) == 1  # it does not run again
    late = course(tmp_path, seconds=3.0)
    assert late.command("good now", 30, "good") == 3
    assert late.unfinished == ["good now"]


def test_what_is_cut_off_does_not_outlive_its_session(tmp_path: Path) -> None:
    """A command has a process group of its own, so that its time limit can end it. It has no session of its
    own, because nobody would clean that up."""
    subject = course(tmp_path)
    subject.environment["PYTHONPATH"] = str(tmp_path)
    (tmp_path / "who.py").write_text("import os; print(os.getpid(), os.getpgid(0), os.getsid(0))")
    assert subject.command("who", 30, "who") == 0
    process, group, session = map(int, (subject.logs / "who.txt").read_text().split())
    assert (group, session) == (process, os.getsid(0))


def test_what_raises_keeps_nothing_else_from_being_tried(tmp_path: Path) -> None:
    subject = course(tmp_path)
    subject.attempt(lambda: 1 / 0)
    subject.attempt(subject.say, "and then")
    said = (tmp_path / "out" / "session.txt").read_text()
    assert "ZeroDivisionError" in said
    assert "and then" in said
    assert len(subject.failed) == 1
    # The carried objects are damaged, so they are compiled on the machine.
    (tmp_path / "carry").mkdir()
    (tmp_path / "carry" / "cuda.tar.xz").write_bytes(b"\xfd7zXZ\0cut off")
    assert subject.objects() is None
    assert "cannot be unpacked" in (tmp_path / "out" / "session.txt").read_text()


class Ready:
    """Twins that are already written."""

    def __init__(self, folder: Path) -> None:
        self.folder, (self.target, self.draft), self.said = folder, twins.files("tiny", folder), ""

    def wait(self, _seconds: float) -> int:
        return 0


def recorded(subject: Course, folder: Path, code: int) -> list[tuple[str, float, list[str]]]:
    """Return the commands of the comparison's part of a course, (name, seconds, words). None of them runs."""
    found: list[tuple[str, float, list[str]]] = []

    def command(name: str, seconds: float, *words: object, keep: bool = False) -> int:
        found.append((name, seconds, list(map(str, words))))
        return code if name == "compare" else 0

    subject.command = command  # type: ignore[method-assign]
    subject.twins = Ready(folder)  # type: ignore[assignment]
    subject.side_by_side()
    return found


def test_the_late_parts_have_their_time(tmp_path: Path) -> None:
    """From the second call on, the comparison leaves enough time for the late parts that have not run yet."""
    subject = course(tmp_path, seconds=500.0)
    subject.keeper.note("calls", number=1)
    found = recorded(subject, tmp_path, 3)
    assert [name for name, *_ in found] == ["compare", *LATE, "compare"]
    assert found[0][1] == pytest.approx(500 - 10 - LATE["timeline"], abs=3)
    subject.keeper.note("calls", number=2)
    subject.keeper.note("timeline", code=0)
    found = recorded(subject, tmp_path, 0)
    # The comparison is done, so it does not run again.
    assert [name for name, *_ in found] == ["compare", *LATE]
    assert found[0][1] == pytest.approx(490 - sum(LATE.values()) + LATE["timeline"], abs=3)


def test_other_types_have_no_say_in_what_twins_run_on(tmp_path: Path) -> None:
    """This also holds in a later call. It finds the results of all types, which the call before it began."""

    def command(name: str, _seconds: float, *words: object, keep: bool = False) -> int:
        if keep and not subject.keeper.ran(name):
            folder = Path(str(words[1]))
            folder.mkdir(exist_ok=True)
            bad = "all" in name
            found = {"types": [{"failures": ["tq1_0: wrong"] * bad}], "unfinished": ["q2_0"] * bad}
            (folder / "patches.json").write_text(json.dumps(found))
            (folder / "patches.txt").write_text(name)
            subject.keeper.note(name, code=3 if bad else 0)
        return 0

    (tmp_path / "work").mkdir()
    forms = ("split, 25 %, masks", "split, 25 %, masks, ahead")
    rows = [{"name": form, "fault": "", "error": 0.0} for form in forms]
    (tmp_path / "work" / "smoke.json").write_text(json.dumps(rows))
    for _ in range(2):
        subject = course(tmp_path)
        subject.command = command  # type: ignore[method-assign]
        subject.patches("patches of the twins' types", 60, "q4_K", quick=True)
        subject.choose_form()
        assert subject.environment["SPAC_DEVICE_MASKS"] == "1"
        subject.patches("patches of all types", 60, "", quick=True)
    assert (tmp_path / "out" / "patches.txt").read_text() == "patches of all types"


def test_cells_of_another_machine_are_kept_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject = course(tmp_path, quick=False)
    subject.keeper.note("calls", number=1)
    places = []
    for name in ("NVIDIA H100 80GB HBM3, a CPU, 16 cores", "NVIDIA H200, a CPU, 16 cores"):
        monkeypatch.setattr(facts, "machine", lambda name=name: name)
        words = recorded(subject, tmp_path, 0)[0][2]
        places.append(Path(words[1]))
        places[-1].mkdir()
    assert [each.name for each in places] == [
        "compare-NVIDIA-H100-80GB-HBM3-a-CPU-16-cores", "compare-NVIDIA-H200-a-CPU-16-cores"
    ]  # fmt: skip
    assert words[words.index("--budgets") + 1] == "17%"
    said = (tmp_path / "out" / "session.txt").read_text()
    assert said.count("the comparison begins anew, beside compare-NVIDIA-H100") == 1
    # Cells of another form are kept apart too. A call without time to check the kernels has one.
    subject.environment |= {"SPAC_DEVICE_MASKS": "0", "SPAC_LAUNCH_AHEAD": "1"}
    words = recorded(subject, tmp_path, 0)[0][2]
    assert Path(words[1]).name == "compare-NVIDIA-H200-a-CPU-16-cores-without-spac-device-masks"


def test_twins_lie_in_memory_where_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory, disk = tmp_path / "shm", tmp_path / "disk"
    memory.mkdir()
    free = [60 * twins.GB]
    monkeypatch.setattr(shutil, "disk_usage", lambda _: argparse.Namespace(free=free[0]))
    name = "qwen3-30b-a3b"
    assert twins.place(name, memory, disk) == memory / "spac-twins"
    free[0] = 40 * twins.GB
    assert twins.place(name, memory, disk) == disk
    assert twins.place("tiny", memory, disk) == memory / "spac-twins"
    assert twins.place(name, tmp_path / "none", disk) == disk
    # The twins take memory themselves, but the next call still finds them.
    (memory / "spac-twins").mkdir()
    twins.files(name, memory / "spac-twins")[0].write_text("")
    assert twins.place(name, memory, disk) == memory / "spac-twins"


def test_two_writers_never_write_the_same_twin(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with (tmp_path / "tiny.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # stands for the writer of a call that was cut off
        waiting = twins.Twins("tiny", tmp_path, tmp_path / "log.txt", environment)
        while waiting.wait(0.1) is None and "at work" not in waiting.said:
            pass
        assert waiting.wait(1.5) is None  # long enough to write the twin
        assert not list(tmp_path.glob("*.part"))
        waiting.end()
        assert waiting.wait(10) == -9
        second = twins.Twins("tiny", tmp_path, tmp_path / "log.txt", environment)
        for path in twins.files("tiny", tmp_path):
            path.write_text("whole")
    assert second.wait(60) == 0
    assert [path.read_text() for path in twins.files("tiny", tmp_path)] == ["whole", "whole"]
    for path in twins.files("tiny", tmp_path):
        path.unlink()
    third = twins.Twins("tiny", tmp_path, tmp_path / "log.txt", environment)
    assert third.wait(120) == 0, third.said
    assert all(path.stat().st_size > 1 << 19 for path in twins.files("tiny", tmp_path))
    assert "tiny-draft" in third.said


def test_the_limit_on_device_memory_holds(
    twin: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--target", str(twin[0]), "--draft", str(twin[1]), "--device", "simulated", "--limit", "9M"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.gpu_suite.limit", str(tmp_path / "found.json"), *words,
         "--prompt", "64", "--tokens", "8"],
        cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert (found["limit"], found["card"], found["tokens"]) == (9 << 20, None, 8)
    assert 0 < found["account"] <= found["limit"]
    assert 0 < found["slots"] < 4 * 128  # not all experts fit
    assert "not measured" in done.stdout
    over = {**found, "account": found["limit"] + 1}
    monkeypatch.setattr(limit, "measure", lambda _: over)
    monkeypatch.setattr(sys, "argv", ["limit", str(tmp_path / "found.json"), *words])
    assert limit.main() == 1


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
    (subject.work / "patches-twins").mkdir()
    failures = [] if kernels else ["q4_K: wrong"]
    found = {"types": [{"failures": failures}], "unfinished": []}
    (subject.work / "patches-twins" / "patches.json").write_text(json.dumps(found))
    subject.choose_form()
    names = "SPAC_DEVICE_MASKS", "SPAC_LAUNCH_AHEAD", "SPAC_LOOKAHEAD"
    assert tuple(subject.environment[name] for name in names) == chosen
    found["unfinished"] = ["q6_K"]  # a type that was not checked does not count as right
    (subject.work / "patches-twins" / "patches.json").write_text(json.dumps(found))
    subject.choose_form()
    assert subject.environment["SPAC_DEVICE_MASKS"] == "0"


def test_facts_never_raise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "WRITTEN", 1 << 20)
    found = dict(line.split(": ", 1) for line in facts.lines(tmp_path))
    assert {"processor", "memory", "gpu", "cuBLAS", "python", "disk"} <= set(found)
    assert "usable" in found["processor"]


def test_smoke_sees_a_wrong_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The split equals llama.cpp on the simulated device. Exchanged experts are far above the bound."""
    forms = {form.name: form for form in smoke.FORMS}
    wanted = smoke.compute(forms["plain, on the CPU"], "simulated", 1)
    split = smoke.compute(forms["split, 25 %, masks"], "simulated", 1)
    assert smoke.error(split, wanted) == 0
    monkeypatch.setattr(smoke, "DEMO", exchange_experts(smoke.DEMO, tmp_path / "exchanged.gguf"))
    assert smoke.error(smoke.compute(forms["split, 25 %, masks"], "simulated", 1), wanted) > smoke.BOUND
    assert smoke.error(np.full_like(wanted, np.nan), wanted) == float("inf")


@pytest.mark.parametrize("name", [form.name for form in smoke.FORMS if form.uses or form.resized])
def test_every_form_of_smoke_is_tried(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that does not use what it is about fails. All give the CPU's logits on the simulated device."""
    forms = {form.name: form for form in smoke.FORMS}
    wanted = smoke.compute(forms["plain, on the CPU"], "simulated", 1)
    for variable, value in forms[name].settings:  # the next model that is loaded reads them
        monkeypatch.setenv(variable, value)
    assert smoke.error(smoke.compute(forms[name], "simulated", 1), wanted) == 0
    if forms[name].uses:
        monkeypatch.setenv("SPAC_EXCHANGE_KERNELS", "0")
        with pytest.raises(RuntimeError, match=f"its {forms[name].uses} is 0"):
            smoke.compute(replace(forms[name], slots="0", stream_batch=0), "simulated", 1)


def test_a_form_that_crashes_runs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has the lines of the debugger, or else of the sanitizer."""
    args = argparse.Namespace(
        seconds=100, logs=None, device="CUDA0", at_once=1, forms=None, longest=9, threads=1
    )
    subject = smoke.Smoke(args, tmp_path)
    monkeypatch.setattr(subject, "_environment", lambda _: {}, raising=False)
    monkeypatch.setattr(smoke.shutil, "which", lambda name: f"/bin/{name}")
    monkeypatch.setattr(smoke.watched, "again", lambda _: None)
    calls: list[list[str]] = []

    def run(words: list[object], *_: object, **__: object) -> smoke.watched.Ended:
        calls.append([str(word) for word in words])
        return smoke.watched.Ended(1, "CUDA error: an illegal address", "========= Invalid read\nother")

    monkeypatch.setattr(smoke.watched, "run", run)
    row = subject.form(smoke.FORMS[2])
    assert row["again"] == ["========= Invalid read"]
    assert [words[0] == "/bin/compute-sanitizer" for words in calls] == [False, True]
    assert smoke.line(row).splitlines()[1].strip() == "========= Invalid read"


def test_the_packed_source_has_what_csrc_includes() -> None:
    """A backend of ggml that is left out of the pack must not be a part of spac's own code."""
    texts = [path.read_text() for path in (ROOT / "csrc").rglob("*.[ch]*")]
    included = {name for text in texts for name in re.findall(r'#include "ggml-(\w+)/', text)}
    assert "rpc" in included
    assert included.isdisjoint(pack.UNUSED)


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
