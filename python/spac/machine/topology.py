"""The CPUs of the machine, and the choice of CPUs for the threads that compute."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEVICES = Path("/sys/devices")
_SLOW = 0.8
"""A CPU below this share of the fastest CPU's speed is of a slower kind.

CPUs of one kind differ less: some of them are allowed a slightly higher clock.
"""


@dataclass(frozen=True)
class Cpu:
    """A CPU, which is one hardware thread of a core."""

    number: int
    core: int
    """The lowest number of the core's CPUs that this process may use."""
    rank: int = 0
    """The CPU's place among the CPUs of its core: 0 for the first, 1 for the second."""
    is_slow: bool = False
    """True for a CPU of an efficiency core."""
    node: int = 0
    """The number of the NUMA node whose memory is near."""


def usable() -> set[int]:
    """Return the numbers of the CPUs that the system lets this process use."""
    return os.sched_getaffinity(0)


def read_cpus(allowed: Collection[int] | None = None, devices: Path = _DEVICES) -> list[Cpu]:
    """Return the allowed CPUs, by default all usable ones, as the system describes them below `devices`.

    Where the system gives no description, a CPU is taken as a fast core of its own on node 0.
    """
    numbers = sorted(usable() if allowed is None else allowed)
    slow, nodes = _slow_ones(numbers, devices), _nodes(devices)
    cpus = []
    for number in numbers:
        text = _text(devices / f"system/cpu/cpu{number}/topology/thread_siblings_list")
        siblings = sorted(set(_numbers(text)) & set(numbers)) or [number]
        rank = siblings.index(number) if number in siblings else 0
        cpus.append(Cpu(number, siblings[0], rank, number in slow, nodes.get(number, 0)))
    return cpus


def n_cores(cpus: Sequence[Cpu]) -> int:
    """Return the number of physical cores, at least 1."""
    return max(1, len({cpu.core for cpu in cpus}))


def ranked(cpus: Sequence[Cpu]) -> list[int]:
    """Return the numbers of the CPUs in the order in which threads should get them.

    The first hardware thread of every core comes first. Performance cores come before efficiency cores, and
    then nodes in order, so that threads stay on one node if its cores suffice.
    """
    order = sorted(cpus, key=lambda cpu: (cpu.rank, cpu.is_slow, cpu.node, cpu.number))
    return [cpu.number for cpu in order]


def is_uneven(cpus: Sequence[Cpu]) -> bool:
    """Return True if the choice of CPUs matters: there are two kinds of cores, or several NUMA nodes."""
    return len({cpu.is_slow for cpu in cpus}) > 1 or len({cpu.node for cpu in cpus}) > 1


def mixes_kinds(cpus: Sequence[Cpu], threads: int) -> bool:
    """Return True if this number of threads takes performance cores and efficiency cores together."""
    best = set(ranked(cpus)[:threads])
    return len({cpu.is_slow for cpu in cpus if cpu.number in best}) > 1


def placing(cpus: Sequence[Cpu], threads: int) -> list[int]:
    """Return the CPUs to which all of this number of threads are bound together; an empty list binds nothing.

    If the CPUs are uneven, these are the best ones, and the system moves the threads within them. If the CPUs
    are even, the system decides alone. No thread is bound to one CPU: it would wait when another program runs
    there, and all other threads would wait for it.
    """
    return ranked(cpus)[:threads] if is_uneven(cpus) else []


def numa_advice(cpus: Sequence[Cpu], policy: str | None = None) -> str | None:
    """Return one line for a user whose memory lies on several NUMA nodes, else None.

    All threads read all weights, so weights that lie in one node's memory are read at that memory's speed.
    `policy` is a line of /proc/self/numa_maps, which is read by default. A policy that the user has chosen
    stays.
    """
    n_nodes = len({cpu.node for cpu in cpus})
    if n_nodes < 2:
        return None
    if policy is None:
        policy = _first_mapping()
    if any(word in policy for word in ("interleave", "bind", "prefer")):
        return None
    return (
        f"{n_nodes} NUMA nodes: a mapped model lies in the memory of the node that read it first; "
        "numactl --interleave=all spreads it"
    )


def _slow_ones(numbers: Sequence[int], devices: Path) -> set[int]:
    """Return the numbers of the CPUs of efficiency cores."""
    performance, efficiency = (
        set(_numbers(_text(devices / name / "cpus"))) for name in ("cpu_core", "cpu_atom")
    )
    if performance and efficiency:
        return efficiency & set(numbers)
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {number: _speed(devices / f"system/cpu/cpu{number}" / name) for number in numbers}
        if all(speeds.values()):
            fastest = max(speeds.values(), default=0)
            return {number for number, speed in speeds.items() if speed < _SLOW * fastest}
    return set()


def _speed(path: Path) -> int:
    """Return the number in a file; 0 if there is none."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else 0


def _nodes(devices: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU, by the CPU's number."""
    folder, nodes = devices / "system/node", {}
    for node in _numbers(_text(folder / "online")):
        nodes.update(dict.fromkeys(_numbers(_text(folder / f"node{node}/cpulist")), node))
    return nodes


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "0-3,8"; none if the text is not such a list."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return []
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _first_mapping() -> str:
    """Return the first line of /proc/self/numa_maps; an empty text if it cannot be read.

    The system walks the pages of each mapping whose line is read, so the others are not read.
    """
    try:
        with Path("/proc/self/numa_maps").open("rb", buffering=0) as file:
            return file.read(256).partition(b"\n")[0].decode()
    except OSError:
        return ""


def _text(path: Path) -> str:
    """Return a file's text; "" if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
