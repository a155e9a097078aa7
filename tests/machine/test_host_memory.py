"""The available memory is the machine's, less what control groups of either version take away."""

from __future__ import annotations

from pathlib import Path

import pytest

from spac.machine import control_groups, host_memory

MIB = 1 << 20


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of control groups. The process is in no group yet."""
    monkeypatch.setattr(control_groups, "GROUPS", tmp_path)
    monkeypatch.setattr(control_groups, "OWN", tmp_path / "own")
    monkeypatch.setattr(host_memory, "sizes", lambda: (8 << 30, 16 << 30))
    return tmp_path


def put(groups: Path, own: str, **files: dict[str, object]) -> None:
    """Write the files of control groups.

    `own` is the system's list of the process's groups. `files` maps folders (with _ for /) to names and
    contents.
    """
    (groups / "own").write_text(own)
    for name, contents in files.items():
        folder = groups / name.replace("_", "/")
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in contents.items():
            (folder / file).write_text(f"{text}\n")


def test_the_limits_of_all_groups_around_a_process_count(groups: Path) -> None:
    put(
        groups,
        "0::/user/app\n",
        user={"memory.max": 900 * MIB, "memory.current": 300 * MIB},
        user_app={"memory.max": "max", "memory.current": 100 * MIB},
    )
    assert host_memory.group_limit() == 900 * MIB
    assert host_memory.available() == 600 * MIB
    (groups / "user/app/memory.high").write_text(str(200 * MIB))
    assert host_memory.available() == 100 * MIB
    assert host_memory.most() == 200 * MIB
    (groups / "user/app/memory.current").write_text(str(300 * MIB))
    assert host_memory.available() == 0


def test_pages_of_files_are_available(groups: Path) -> None:
    stat = f"anon 5\nactive_file {50 * MIB}\ninactive_file {150 * MIB}\n"
    put(
        groups, "0::/\n", **{".": {"memory.max": 500 * MIB, "memory.current": 300 * MIB, "memory.stat": stat}}
    )
    assert host_memory.available() == 400 * MIB


def test_version_1(groups: Path) -> None:
    own = "12:pids:/\n9:name=systemd:/\n4:memory:/box\n0::/\n"
    stat = f"active_file 1\ninactive_file 1\ntotal_active_file {20 * MIB}\ntotal_inactive_file 0\n"
    limits = {"memory.limit_in_bytes": 100 * MIB, "memory.usage_in_bytes": 70 * MIB, "memory.stat": stat}
    put(groups, own, memory_box=limits, memory={"memory.limit_in_bytes": 2**63 - 4096})
    assert host_memory.group_limit() == 100 * MIB
    assert host_memory.available() == 50 * MIB
    # A container shows its own group as the outermost one.
    put(groups, "4:memory:/docker/1234\n", memory=limits)
    assert host_memory.group_limit() == 100 * MIB


@pytest.mark.parametrize("own", ["", "0::/\n", "0::/gone\n"])
def test_without_limits_it_is_the_machine_s(groups: Path, own: str) -> None:
    put(groups, own)
    assert host_memory.group_limit() is None
    assert host_memory.available() == 8 << 30
    assert host_memory.most() == 16 << 30


def test_a_system_that_tells_nothing(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing() -> tuple[int, int]:
        raise OSError

    monkeypatch.setattr(host_memory, "sizes", nothing)
    assert host_memory.available() == host_memory.most() == 0
    assert host_memory.group_limit() is None  # there is no file that names the groups either
