"""The rooms of python/spac are few, import one way, and have the entry points that users know."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "python" / "spac"

ROOMS = (
    "errors", "demo", "machine", "env", "_library", "costs", "scheduler", "papers", "replay", "governor",
    "config", "stats", "model", "engine", "cli", "run", "chat", "llama_cpp_python", "exec", "doctor",
    "models", "bench", "report", "serve", "rpc_server",
)  # fmt: skip
"""The rooms, low to high. A room imports itself and lower ones, even in a function or for types alone.

`spac.cli` finds a program's module by the name that a user gave.
"""
FRONT = ("__main__", "__init__")
"""The package itself. It stands above all rooms: `Llama`, `enable` and `disable` come from a high one."""
EXCEPTIONS: dict[tuple[str, str], str] = {}
"""Imports against the order, each with the reason that it cannot be cut."""

PROGRAMS = (
    "run", "chat", "serve", "exec", "doctor", "models", "bench", "report", "rpc_server"
)  # fmt: skip
SURFACE = {
    "spac": "Llama enable disable __version__",
    "spac.config": "COUNT CONTEXT CONTEXT_GROUP DRAFT DRAFT_TYPES FIXED_LENGTH LONGEST PROBABILITY "
    "ContextConfig EngineConfig Range SamplingConfig Slots StreamBatch VramLimit names_in option",
    "spac.costs": "Costs ExpertCosts LiveCosts",
    "spac.engine": "Chat Delta Engine EngineConfig Generation InputError LoadProgress Recorder "
    "SamplingConfig Scheduler",
    "spac.errors": "Cancelled DeviceError InputError InternalError OutOfMemoryError SpacError one_line",
    "spac.governor": "BatchGovernor FixedGovernor Governor RooflineGovernor",
    "spac.scheduler": "Event Layer Plan Scheduler View make names parse share_slots",
    "spac.scheduler.base": "Event Layer Plan Scheduler View share_slots",
    "spac.scheduler.ewma": "best_per_pool",
    "spac.replay": "Demand replay",
    "spac.stats": "SCHEMA Meter RunStats Setting",
    "spac.demo": "TARGET DRAFT PROMPT SAMPLING",
    **{f"spac.{name}": "main" for name in (*PROGRAMS, "cli")},
}
"""The names that users, the documents and the examples import, by module."""
AT_FIRST = {
    "spac", "spac._library", "spac.env", "spac.errors", "spac.machine", "spac.machine.device_memory",
}  # fmt: skip
"""All modules of the package that `import spac` loads."""


def room_of(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        words = path.relative_to(PACKAGE.parent).with_suffix("").parts
        found[".".join(words[:-1] if words[-1] == "__init__" else words)] = path
    return found


MODULES = modules()


@cache
def imported(path: Path) -> list[tuple[int, str]]:
    """Return line and full name of each import in a file, at any place in it."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: a relative import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def imported_room(name: str) -> str | None:
    words = name.split(".")
    if words[0] != "spac" or name in ("spac._core", "spac.__version__"):
        return None
    if len(words) > 1 and f"spac.{words[1]}" in MODULES:
        return words[1]
    return None if words[1:2] == ["_core"] else "__init__"


def test_every_room_has_its_place():
    assert {room_of(name) for name in MODULES} == {*ROOMS, *FRONT}


def wrong(is_wrong: Callable[[str, str], bool]) -> list[str]:
    """Return the places of imports that are wrong, by the importing module and the full name."""
    return [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for module, path in MODULES.items()
        for line, name in imported(path)
        if is_wrong(module, name)
    ]


def test_arrows_go_down():
    rank = {room: i for i, room in enumerate((*ROOMS, *FRONT))}
    assert not wrong(
        lambda module, name: (
            (module, name) not in EXCEPTIONS
            and (room := imported_room(name)) is not None
            and rank[room] > rank[room_of(module)]
        )
    )


def test_the_papers_are_known_by_name_alone():
    assert not wrong(lambda module, name: imported_room(name) == "papers" != room_of(module))


DECLARED = ("spac.errors", "spac.machine.device_memory", "spac.machine.files", "spac.scheduler.choice")
"""Modules that a configuration may import: errors, texts of sizes, files, and the declared options of
schedulers. The contract of these is imported only for types."""


def test_a_configuration_needs_no_engine():
    allowed = {*DECLARED, "spac.scheduler.base"}
    assert not wrong(
        lambda module, name: (
            room_of(module) == "config"
            and imported_room(name) not in (None, "config")
            and name.rpartition(".")[0] not in allowed
        )
    )


def test_the_contract_of_schedulers_reads_no_text():
    parsers = {"spac.scheduler", "spac.scheduler.choice"}
    assert not wrong(
        lambda module, name: module == "spac.scheduler.base" and name.rpartition(".")[0] in parsers
    )


def test_the_product_knows_no_tests_and_no_benchmarks():
    assert not wrong(lambda _module, name: name.split(".")[0] in {"tests", "bench"})


def test_the_documents_list_the_rooms():
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("\n## The rooms of python/spac\n")[1].split("\n## ")[0]
    assert tuple(re.findall(r"^- `(\w+)` ", section, re.MULTILINE)) == ROOMS


@pytest.mark.parametrize("module", SURFACE)
def test_what_users_import(module):
    found = importlib.import_module(module)
    assert not [name for name in SURFACE[module].split() if not hasattr(found, name)]


@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_start(program):
    done = subprocess.run(
        [sys.executable, "-m", "spac", program.replace("_", "-"), "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert f"spac {program.replace('_', '-')}" in done.stdout


def test_the_first_import_is_light():
    code = (
        "import sys, spac; print(*(name for name in sys.modules if name.split('.')[0] in ('spac', 'numpy')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60
    )
    assert set(done.stdout.split()) == AT_FIRST
