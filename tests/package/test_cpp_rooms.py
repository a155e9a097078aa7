"""The folders of csrc include each other in one direction. Tests stand in folders named after the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.package.test_rooms import ROOMS as PYTHON_ROOMS

ROOT = Path(__file__).resolve().parents[2]
CSRC = ROOT / "csrc"

FOLDERS = ("core", "kernels", "backend", "session", "hooks", "bindings")
"""The folders of csrc, low to high. A folder includes itself and lower ones."""
BACKEND = (
    "device", "simulated_device", "experts", "graph", "stream", "prefill", "hidden_states", "split",
    "wrapper", "remote",
)  # fmt: skip
"""The folders of csrc/backend, low to high."""
OF_THE_WHOLE = (
    "architectures", "conversations", "docs", "examples", "fuzz", "language", "native", "package", "patches",
    "together", "tools", "vulkan",
)  # fmt: skip
"""Folders of tests that belong to no single folder of the code."""

INCLUDE = re.compile(r'^#include "([a-z_]+)/(?:([a-z_]+)/)?[\w.]+"', re.MULTILINE)


def includes(folder: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield file and first two folders for every header of ours that a file below `folder` includes."""
    for path in sorted(folder.rglob("*.[ch]*")):
        for match in INCLUDE.finditer(path.read_text(encoding="utf-8")):
            yield path.relative_to(CSRC), match[1], match[2] or ""


def test_csrc_includes_one_way():
    assert {path.name for path in CSRC.iterdir() if path.is_dir()} == set(FOLDERS)
    rank = {folder: i for i, folder in enumerate(FOLDERS)}
    found = [(path, to) for path, to, _ in includes(CSRC)]
    assert {path.parts[0] for path, _ in found} == set(FOLDERS)
    assert not [f"{path}: {to}" for path, to in found if rank[to] > rank[path.parts[0]]]
    # ggml asks the kernels for products. The backend does not.
    assert not [
        path for path, to in found if (path.parts[0], to) in {("backend", "kernels"), ("kernels", "backend")}
    ]


def test_backend_includes_one_way():
    assert {path.name for path in (CSRC / "backend").iterdir()} == set(BACKEND)
    rank = {folder: i for i, folder in enumerate(BACKEND)}
    found = [(path, room) for path, to, room in includes(CSRC / "backend") if to == "backend"]
    assert {path.parts[1] for path, _ in found} == set(BACKEND)
    assert not [f"{path}: {room}" for path, room in found if rank[room] > rank[path.parts[1]]]


def test_the_mechanism_knows_no_device_by_name():
    """Only the wrapper, which registers the simulated device, includes its header."""
    named = {path.parts[1] for path, to, room in includes(CSRC / "backend") if room == "simulated_device"}
    assert named == {"simulated_device", "wrapper"}


def test_the_documents_list_the_folders():
    text = (ROOT / "docs" / "internals" / "hand-off.md").read_text(encoding="utf-8")
    section = text.split("\n## Folders of csrc/backend\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^\| \*\*`(\w+)`\*\* ", section, re.MULTILINE)) == BACKEND
    listed = set(re.findall(r"`(\w+)`", "\n".join(re.findall(r"^\| (`.*?) \|", section, re.MULTILINE))))
    assert not {path.stem for path in CSRC.glob("backend/*/*.cpp")} - listed - set(BACKEND) - {
        "simulated_memory", "simulated_stream",
    }  # fmt: skip


@pytest.mark.parametrize("folder", sorted(path.name for path in (ROOT / "tests").iterdir() if path.is_dir()))
def test_tests_mirror_the_folders(folder):
    if folder != "__pycache__":
        assert folder in {*PYTHON_ROOMS, *FOLDERS, *OF_THE_WHOLE}


def test_no_import_between_tests_and_benchmarks():
    """Tests of benchmarks import these. Benchmarks import no tests. Tools import neither."""
    wrong = {"bench": "tests", "tools": r"tests|bench"}
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for folder, other in wrong.items()
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.match(rf"\s*(from|import) ({other})\b", line)
    ]
    assert not found
