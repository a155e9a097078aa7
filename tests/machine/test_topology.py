"""Threads get the right CPUs on machines that are made of files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from spac.machine.topology import (
    is_uneven,
    mixes_kinds,
    n_cores,
    numa_advice,
    placing,
    ranked,
    read_cpus,
)


def machine(
    root: Path,
    cores: Iterable[str],
    *,
    files: Mapping[str, str] | None = None,
    nodes: Iterable[str] = (),
    speeds: Mapping[int, int] | None = None,
    speed_file: str = "cpu_capacity",
) -> Path:
    """Write the /sys/devices of a machine: a list of CPUs for each core and each node."""
    pages = dict(files or {})
    for siblings in cores:
        for cpu in siblings.split(","):
            pages[f"system/cpu/cpu{cpu}/topology/thread_siblings_list"] = siblings
    for node, cpus in enumerate(nodes):
        pages[f"system/node/node{node}/cpulist"] = cpus
        pages["system/node/online"] = f"0-{node}"
    for cpu, speed in (speeds or {}).items():
        pages[f"system/cpu/cpu{cpu}/{speed_file}"] = str(speed)
    for name, text in pages.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


P_CORES = [f"{2 * i},{2 * i + 1}" for i in range(8)]
HYBRID = [*P_CORES, *map(str, range(16, 24))]


@pytest.mark.parametrize("source", ["types", "capacity", "frequency"])
def test_a_hybrid(tmp_path: Path, source: str) -> None:
    """The machine has 8 performance cores of two threads each, and 8 efficiency cores."""
    if source == "types":
        root = machine(tmp_path, HYBRID, files={"cpu_core/cpus": "0-15", "cpu_atom/cpus": "16-23"})
    else:
        speeds = {cpu: (1000 + cpu % 2 * 24 if cpu < 16 else 600) for cpu in range(24)}
        name = "cpu_capacity" if source == "capacity" else "cpufreq/cpuinfo_max_freq"
        root = machine(tmp_path, HYBRID, speeds=speeds, speed_file=name)
    cpus = read_cpus(range(24), root)
    assert n_cores(cpus) == 16
    assert ranked(cpus) == [*range(0, 16, 2), *range(16, 24), *range(1, 16, 2)]
    assert is_uneven(cpus)
    assert [threads for threads in (1, 8, 9, 24) if mixes_kinds(cpus, threads)] == [9, 24]
    assert placing(cpus, 8) == list(range(0, 16, 2))


def test_two_sockets(tmp_path: Path) -> None:
    """The second threads of cores have the higher numbers, as is usual."""
    cores = [f"{i},{i + 8}" for i in range(8)]
    cpus = read_cpus(range(16), machine(tmp_path, cores, nodes=["0-3,8-11", "4-7,12-15"]))
    assert n_cores(cpus) == 8
    assert [cpu.node for cpu in cpus] == [0, 0, 0, 0, 1, 1, 1, 1] * 2
    assert placing(cpus, 8) == list(range(8))
    assert placing(cpus, 100) == [*range(8), *range(8, 12), *range(12, 16)]
    line = numa_advice(cpus, "7f00 default file=/x")
    assert line is not None
    assert line.startswith("2 NUMA nodes: ")
    assert numa_advice(cpus, "7f00 interleave:0-1 file=/x") is None
    assert numa_advice(cpus[:4], "7f00 default") is None


@pytest.mark.parametrize("has_smt", [False, True])
def test_equal_cores_are_left_to_the_system(tmp_path: Path, has_smt: bool) -> None:
    cores = [f"{i},{i + 4}" for i in range(4)] if has_smt else list(map(str, range(4)))
    cpus = read_cpus(range(8 if has_smt else 4), machine(tmp_path, cores, nodes=["0-7"]))
    assert n_cores(cpus) == 4
    assert ranked(cpus)[:4] == [0, 1, 2, 3]
    assert placing(cpus, 4) == []


def test_a_container_with_some_of_the_cpus(tmp_path: Path) -> None:
    """The container has one thread of some cores, and both threads of other cores."""
    root = machine(tmp_path, HYBRID, files={"cpu_core/cpus": "0-15", "cpu_atom/cpus": "16-23"})
    cpus = read_cpus([1, 4, 5, 20], root)
    assert n_cores(cpus) == 3
    assert ranked(cpus) == [1, 4, 20, 5]
    assert not is_uneven(read_cpus([1, 4, 5], root))


def test_nothing_is_known(tmp_path: Path) -> None:
    cpus = read_cpus([2, 5], tmp_path / "none")
    assert (n_cores(cpus), ranked(cpus), is_uneven(cpus)) == (2, [2, 5], False)
    nonsense = {
        "system/cpu/cpu2/topology/thread_siblings_list": "many",
        "cpu_core/cpus": "-",
        "system/node/online": "0-x",
    }
    assert read_cpus([2, 5], machine(tmp_path, [], files=nonsense)) == cpus
    assert n_cores([]) == 1


def test_this_machine() -> None:
    cpus = read_cpus()
    assert set(ranked(cpus)) == os.sched_getaffinity(0)
    assert 1 <= n_cores(cpus) <= len(cpus)
