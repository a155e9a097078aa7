"""These tests cover what runs on a machine with a GPU, as far as there is none.

Crashes and hangs explain themselves, wrong forms are seen, and a visit goes on behind a part that fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import processes
from bench.__main__ import main
from bench.gpu_suite import pack, probes, smoke
from bench.gpu_suite import visit as suite
from spac import _library
from tools.models import exchange_experts

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, tmp_path: Path, seconds: float = 30.0) -> processes.Ended:
    return processes.run([sys.executable, "-c", code], tmp_path / "logs" / "log.txt", seconds)


def test_the_first_such_line_names_the_cause(tmp_path: Path) -> None:
    code = (
        "import sys; print('loading'); print('CUDA error: an illegal memory access was encountered');"
        "print('  in function compute', flush=True); sys.exit('RuntimeError: llama_decode returned 2')"
    )
    ended = run(code, tmp_path)
    assert ended.fault == "status 1: CUDA error: an illegal memory access was encountered"
    assert "llama_decode" in ended.output
    assert (tmp_path / "logs" / "log.txt").read_text() == ended.output


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("", "no output"),
        ("one\ntwo\n", "two"),
        ("========= ERROR SUMMARY: 0 errors\nlast", "last"),
        ("spac: the device hangs\nTraceback", "spac: the device hangs"),
    ],
)
def test_causes(output: str, cause: str) -> None:
    assert processes.cause(output) == cause


def test_a_crash_tells_where_python_was(tmp_path: Path) -> None:
    ended = run("import ctypes\ndef far_down(): ctypes.string_at(0)\nfar_down()", tmp_path)
    assert ended.code == -11
    assert "in far_down" in ended.output


def test_a_hang_ends_and_tells_where_python_was(tmp_path: Path) -> None:
    code = "import time\ndef far_down(): time.sleep(60)\nprint('begun', flush=True); far_down()"
    ended = run(code, tmp_path, 1.5)
    assert (ended.code, ended.fault) == (None, "not done within 2 s")
    assert ended.output.startswith("begun")
    assert "in far_down" in ended.output


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
    for variable, value in forms[name].environment().items():  # the next model that is loaded reads them
        monkeypatch.setenv(variable, value)
    assert smoke.error(smoke.compute(forms[name], "simulated", 1), wanted) == 0
    if forms[name].uses:
        with pytest.raises(RuntimeError, match=f"its {forms[name].uses} is 0"):
            smoke.compute(replace(forms[name], slots="0", stream_batch=0, early=False), "simulated", 1)


def test_the_packed_source_has_what_csrc_includes() -> None:
    """A backend of ggml that is left out of the pack must not be a part of spac's own code."""
    texts = [path.read_text() for path in (ROOT / "csrc").rglob("*.[ch]*")]
    included = {name for text in texts for name in re.findall(r'#include "ggml-(\w+)/', text)}
    assert "rpc" in included
    assert included.isdisjoint(pack.UNUSED)


FOLDERS = ("bench", "cmake", "csrc", "docs", "examples", "patches", "python", "tests", "tools")


def test_what_travels_is_light() -> None:
    """A visit's files were at the limit once, and any new file broke the next visit. CI's copy has no git."""
    folders = [*FOLDERS, ".ci", ".github"]
    found = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file()]
    built = {"__pycache__", "lib", ".hypothesis"}
    n_bytes = sum(
        path.stat().st_size
        for path in found
        if built.isdisjoint(path.parts) and path.suffix not in (".so", ".gguf")
    )
    assert 1_000_000 < n_bytes <= pack.LIMIT - pack.ARCHIVES


def test_objects_of_a_build_become_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that exist as published too are patched. A build for other than one card's code is refused."""
    build, commands = tmp_path / "build", []
    common, published = (build / folder for folder in pack.OBJECTS)
    for folder, names in ((common, ("mmq.cu.o", "add.cu.o")), (published, ("mmq.cu.o",))):
        folder.mkdir(parents=True)
        for name in names:
            (folder / name).write_text(f"{folder.name} {name}")
    (build / "cudart.a").write_text("runtime")
    for tree in ("patched", "pristine"):
        (build / "llama.cpp" / tree / "ggml" / "include").mkdir(parents=True)

    def ran(*words: object) -> None:
        commands.append(words[0])
        if words[0] == "objcopy":
            Path(str(words[3])).write_bytes(Path(str(words[2])).read_bytes())

    monkeypatch.setattr(pack, "do", ran)
    cache = f"SPAC_CUDA_ARCHITECTURES:STRING=90-real\nCUDA_cudart_static_LIBRARY:FILEPATH={build}/cudart.a\n"
    (build / "CMakeCache.txt").write_text(cache)
    pack.pack_objects(build, tmp_path / "cuda.tar.xz")
    found = suite.unpack(tmp_path / "cuda.tar.xz", tmp_path / "there")
    assert {path.relative_to(found).as_posix() for path in found.rglob("*") if path.is_file()} == {
        "patched/mmq.cu.o", "common/add.cu.o", "published/mmq.cu.o", "cudart.a", "source_id", "capability",
    }  # fmt: skip
    assert (found / "capability").read_text() == "90\n"
    assert commands[:2] == ["cmake", "ninja"]
    (build / "CMakeCache.txt").write_text(cache.replace("90-real", "90"))
    with pytest.raises(pack.PackError, match="90-real"):
        pack.pack_objects(build, tmp_path / "cuda.tar.xz")


def test_a_pack_has_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(pack, "pack_modules", lambda _, to, python: to.write_bytes(python.encode() * 500_000))
    monkeypatch.setattr(pack, "pack_source", lambda _, to: to.write_bytes(bytes(1_000_000)))
    monkeypatch.setattr(pack.source, "sdist", lambda: tmp_path)
    # The tree may be a copy without git.
    monkeypatch.setattr(pack, "do", lambda *words: "README.md\0bench/README.md")
    assert main(["pack", str(tmp_path / "carry"), "--python", "3.11"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"site.tar.xz +2.0 MB\n", printed)
    size = pack.tree_bytes() + 3_000_000
    assert float(re.search(r"with the tree +([\d.]+) MB", printed)[1]) == pytest.approx(size / 1e6, abs=0.1)
    monkeypatch.setattr(pack, "LIMIT", 3_000_000)
    assert main(["pack", str(tmp_path / "carry")]) == 1
    monkeypatch.setattr(pack.source, "sdist", lambda: None)
    assert main(["pack", str(tmp_path / "carry")]) == 2
    assert "build spac first" in capsys.readouterr().err


def visit(tmp_path: Path, *words: str) -> int:
    place = ["--work", str(tmp_path / "work"), "--carry", str(tmp_path / "carry")]
    return main(["gpu", str(tmp_path / "out"), "--device", "simulated", "--model", "tiny", *place, *words])


def test_a_machine_is_described_whatever_it_lacks(tmp_path: Path) -> None:
    assert visit(tmp_path, "--parts", "facts") == 0
    told = (tmp_path / "out" / "machine.txt").read_text()
    assert "Linux" in told
    assert "Python 3." in told, "commands behind those that are missing run too"


def test_a_visit_goes_on_behind_a_part_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended well is not run again. A wrong smoke test ends the visit."""
    ran, wrong = [], {"forms"}
    for name in suite.PARTS:

        def part(self: suite.Visit, name: str = name) -> bool:
            ran.append(name)
            return name not in wrong

        monkeypatch.setattr(suite.Visit, name, part)
    monkeypatch.setattr(suite.Visit, "write_twins", lambda *_: subprocess.Popen(["true"], process_group=0))
    assert visit(tmp_path) == 1
    assert ran == list(suite.PARTS)
    assert "failed: forms\n" in (tmp_path / "out" / "visit.txt").read_text()
    ran.clear()
    wrong.clear()
    assert visit(tmp_path) == 0
    assert ran == ["forms"]
    ran.clear()
    wrong.add("smoke")
    assert visit(tmp_path, "--parts", "smoke", "compare") == 1
    assert ran == ["smoke", "compare"]
    (tmp_path / "work" / "smoke.done").unlink()
    (tmp_path / "work" / "contexts.done").unlink()
    ran.clear()
    assert visit(tmp_path) == 1
    assert ran == ["smoke"]
    assert visit(tmp_path, "--parts", "budgets", "--seconds", "5") == 1
    assert "budgets (no time)" in (tmp_path / "out" / "visit.txt").read_text()


def test_a_visit_writes_twins_once_and_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 30}))
    folder = tmp_path / "work" / "spac-twins"
    folder.mkdir(parents=True)
    (folder / "tiny-target.part").write_text("cut off")
    assert visit(tmp_path, "--parts", "patches", "timeline") == 0, (
        tmp_path / "out" / "visit.txt"
    ).read_text()
    assert sorted(path.name for path in folder.iterdir()) == ["tiny-draft.gguf", "tiny-target.gguf"]
    assert "PASSED" in (tmp_path / "out" / "patches.txt").read_text()
    assert (tmp_path / "out" / "timeline.json.gz").stat().st_size > 1000
    before = (folder / "tiny-target.gguf").stat().st_mtime_ns
    assert visit(tmp_path, "--parts", "forms") == 0
    assert (folder / "tiny-target.gguf").stat().st_mtime_ns == before
    told = [(tmp_path / "out" / f"form-{name.replace(' ', '-')}.txt").read_text() for name in suite.FORMS]
    assert all('"verify_s"' in text for text in told)


def test_the_patches_are_checked_on_the_cpu(tmp_path: Path) -> None:
    def check(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bench", "patches", tmp_path, "--device", "CPU", "--library",
             _library.library_path(), "--types", "q8_0", "--quick", *options],
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    late = check("--seconds", "0")
    assert late.returncode == 3, late.stdout + late.stderr
    done = check()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASSED\n" in (tmp_path / "patches.txt").read_text()
    (counts,) = json.loads((tmp_path / "patches.json").read_text())["figures"]
    assert counts["n_shapes"] == 20
    for count in (counts["experts"], counts["rows"]):
        assert min(count["n_kept"], count["n_skipped"]) > 0
        assert (count["n_unequal"], count["n_nonzero"], counts["failures"]) == (0, 0, [])
    again = check("--seconds", "5")  # the result of the first run is still there
    assert again.returncode == 0, again.stdout + again.stderr


def test_without_a_driver_every_question_has_an_answer(tmp_path: Path) -> None:
    if subprocess.run(["sh", "-c", "ldconfig -p | grep -q libcuda.so.1"], check=False).returncode == 0:
        pytest.skip("there is a driver here")
    assert probes.ask("link", tmp_path).startswith("link: FAILED: status 2: error: libcuda.so.1")


def test_a_question_that_hangs_costs_its_own_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nexec sleep 60\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    monkeypatch.setattr(probes, "SECONDS", 1.0)
    assert probes.ask("link", tmp_path) == "link: FAILED: not done within 1 s"
