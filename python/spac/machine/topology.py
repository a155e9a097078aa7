"""The CPUs of the machine, and which of them the threads that compute should run on."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

_DEVICES = Path("/sys/devices")
_SLOW = 0.8
"""A CPU below this share of the fastest one's speed is of a slower kind. CPUs of one kind differ less:
some of them are allowed a slightly higher clock."""


@dataclass(frozen=True)
class Cpu:
    """A CPU, which is one hardware thread of a core."""

    number: int
    core: int
    """The lowest number of the core's CPUs that this process may use."""
    rank: int = 0
    """0 for the first of these CPUs, 1 for the second one."""
    is_slow: bool = False
    """True for an efficiency core's."""
    node: int = 0
    """The NUMA node whose memory is near."""


def usable() -> set[int]:
    """Return the CPUs that the system lets this process use."""
    return os.sched_getaffinity(0)


def read_cpus(allowed: Collection[int] | None = None, devices: Path = _DEVICES) -> list[Cpu]:
    """Return the allowed CPUs as the system describes them below `devices`; all that is usable by default.

    What the system does not tell is taken as equal: a CPU is a core of its own, fast, on node 0.
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
    """Return the CPUs in the order in which threads should get them.

    The first thread of every core comes first, performance cores before efficiency cores, and then by node:
    threads that are fewer than the cores of a node stay together.
    """
    order = sorted(cpus, key=lambda cpu: (cpu.rank, cpu.is_slow, cpu.node, cpu.number))
    return [cpu.number for cpu in order]


def is_uneven(cpus: Sequence[Cpu]) -> bool:
    """Return whether it matters which CPUs are used: there are two kinds of cores, or several NUMA nodes."""
    return len({cpu.is_slow for cpu in cpus}) > 1 or len({cpu.node for cpu in cpus}) > 1


def placing(cpus: Sequence[Cpu], threads: int, pin: bool | None) -> tuple[list[int], bool]:
    """Return the CPUs that so many threads run on, and whether each has one for itself.

    `pin` is the user's wish. Without one, threads are bound to the best CPUs together where these are uneven,
    and the system moves them among these. Elsewhere it decides alone: a thread that is bound to one CPU waits
    when another program runs there, and all other threads wait for it. An empty list binds nothing.
    """
    if pin is False or (pin is None and not is_uneven(cpus)):
        return [], False
    return ranked(cpus)[:threads], bool(pin)


def shared_nodes(cpus: Sequence[Cpu], policy: str | None = None) -> list[int]:
    """Return the NUMA nodes that memory should be spread over; an empty list if there is nothing to decide.

    All threads read all weights, so weights that lie in one node's memory are read at that memory's speed.
    `policy` is a line of /proc/self/numa_maps; by default it is read. A policy that the user has chosen
    stays.
    """
    nodes = sorted({cpu.node for cpu in cpus})
    policy = _text(Path("/proc/self/numa_maps")).partition("\n")[0] if policy is None else policy
    is_chosen = any(word in policy for word in ("interleave", "bind", "prefer"))
    return nodes if len(nodes) > 1 and not is_chosen else []


def numa_advice(cpus: Sequence[Cpu], policy: str | None = None) -> str | None:
    """Return one line for a user whose memory lies on several NUMA nodes, else None.

    `policy` is as in `shared_nodes`.
    """
    if not (nodes := shared_nodes(cpus, policy)):
        return None
    return (
        f"{len(nodes)} NUMA nodes: a mapped model lies in the memory of the node that read it first; "
        "--huge-pages on copies it to all of them, and numactl --interleave=all spreads it"
    )


def _slow_ones(numbers: Sequence[int], devices: Path) -> set[int]:
    """Return the CPUs of efficiency cores."""
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
    """Return the number in a file, 0 where there is none."""
    text = _text(path).strip()
    return int(text) if text.isdecimal() else 0


def _nodes(devices: Path) -> dict[int, int]:
    """Return the NUMA node of each CPU."""
    folder, nodes = devices / "system/node", {}
    for node in _numbers(_text(folder / "online")):
        nodes.update(dict.fromkeys(_numbers(_text(folder / f"node{node}/cpulist")), node))
    return nodes


def _numbers(text: str) -> list[int]:
    """Return the numbers of a list such as "0-3,8"; what is no such list is empty."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        if not (first.isdecimal() and (last or first).isdecimal()):
            return []
        numbers += range(int(first), int(last or first) + 1)
    return numbers


def _text(path: Path) -> str:
    """Return a file's text, "" where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, ValueError):
        return ""
