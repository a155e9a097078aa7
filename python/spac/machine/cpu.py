"""Facts about the processor: its cores, its name, and the instruction sets that it lacks."""

from __future__ import annotations

import platform
from pathlib import Path

from spac.machine import control_groups
from spac.machine.topology import n_cores, read_cpus


def physical_cores() -> int:
    """Return the number of cores that this process may use; hyperthreads of one core count once.

    A container may have a quota of processor time. More threads than the quota allows would stop for a
    part of every period, and all other threads would wait for them.
    """
    return max(1, min(n_cores(read_cpus()), int(cpu_quota() or 2**31)))


def cpu_quota() -> float | None:
    """Return the seconds of processor time that this process may use per second; None without a limit.

    Each of the control groups around it may have a limit.
    """
    limits = (_quota(folder) for folder in control_groups.folders("cpu"))
    return min((limit for limit in limits if limit is not None), default=None)


def _quota(group: Path) -> float | None:
    try:
        if (unified := group / "cpu.max").exists():
            quota, period = unified.read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # ValueError: "max", which means no limit


def cpu_name() -> str:
    """Return the processor's name, as the system reports it."""
    facts = _cpu_facts()
    return facts.get("model name") or facts.get("cpu model") or facts.get("cpu part") or platform.machine()


def cpu_description() -> str:
    """Return a text that tells this processor from others of its name, with the number of usable cores."""
    facts = _cpu_facts()
    numbers = [f"{name} {facts[name]}" for name in ("cpu family", "model", "stepping") if name in facts]
    return ", ".join([platform.machine(), cpu_name(), *numbers, f"{physical_cores()} cores"])


def cpu_flags() -> frozenset[str]:
    """Return the instruction sets that the processor and the system support, by Linux's names."""
    return frozenset(_cpu_facts().get("flags", "").split())


def _cpu_facts() -> dict[str, str]:
    """Return the entries of /proc/cpuinfo for the first CPU; nothing if it cannot be read."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def default_threads(cores: int, *, gpu: bool = False, shares_cores: bool = False) -> int:
    """Return the default number of CPU threads: one per core, less the cores that other threads need.

    ggml's threads spin on their cores while they compute and while they wait for the next layer. Beside a GPU
    there are two more threads: one launches the GPU's work ahead, and one copies experts to the GPU. Without
    cores of their own, they displace threads that compute, and every other thread waits for the displaced one
    at the end of each matrix. On an H100 with 16 CPUs and 16 threads, the GPU waited 622 µs a layer for the
    CPU's experts on average, but only 113 µs in the median. On four cores or fewer, one core is left free,
    because two would be too large a share. A device that shares the cores (`shares_cores`) computes on one.
    """
    others = (2 if cores > 4 else 1) if gpu else int(shares_cores)
    return max(1, cores - others)


def threads_advice(threads: int, cores: int, default: int) -> str | None:
    """Return one line for a user who asks for more threads than there are cores, else None."""
    if threads <= cores:
        return None
    where = f"{threads} threads on {cores} {'core' if cores == 1 else 'cores'}"
    return f"{where}: threads that have no core make all others wait; try --threads {default}"


def missing_features(system_info: str, machine: str = platform.machine()) -> list[str]:
    """Return the missing features that make experts on the CPU slower, one line each.

    `system_info` is llama.cpp's line about the instruction sets that the library was built for.
    """
    if machine.lower() in ("x86_64", "amd64") and "AVX2 = 1" not in system_info:
        return ["no AVX2 in this build or CPU: experts on the CPU run slower"]
    return []
