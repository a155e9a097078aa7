"""What the machine has and lacks."""

from __future__ import annotations

import platform
from pathlib import Path

from spac.machine.topology import n_cores, read_cpus


def physical_cores() -> int:
    """Return how many cores this process may use; hyperthreads of one core count once.

    A container may have a quota of processor time. Threads beyond it would stop for a part of every period,
    and all others would wait for them.
    """
    return max(1, min(n_cores(read_cpus()), int(cpu_quota() or 2**31)))


def cpu_quota(control_groups: Path = Path("/sys/fs/cgroup")) -> float | None:
    """Return the processor time per second that a container may use, in seconds; None without a limit."""
    try:
        if (unified := control_groups / "cpu.max").exists():
            quota, period = unified.read_text().split()
        else:
            quota, period = ((control_groups / "cpu" / f"cpu.cfs_{name}_us").read_text().strip()
                             for name in ("quota", "period"))  # fmt: skip
        return float(quota) / float(period) if float(quota) > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None  # also for "max", which is no number


def cpu_name() -> str:
    """Return the processor's name as the system tells it."""
    facts = _cpu_facts()
    return facts.get("model name") or facts.get("cpu model") or facts.get("cpu part") or platform.machine()


def cpu_description() -> str:
    """Return what sets this processor apart from others that may have its name, with the cores to be used."""
    facts = _cpu_facts()
    numbers = [f"{name} {facts[name]}" for name in ("cpu family", "model", "stepping") if name in facts]
    return ", ".join([platform.machine(), cpu_name(), *numbers, f"{physical_cores()} cores"])


def _cpu_facts() -> dict[str, str]:
    """Return what Linux tells about the first CPU."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def default_threads(cores: int, *, gpu: bool = False, simulated: bool = False) -> int:
    """Returns how many CPU threads compute if the user does not say: one per core, less the cores of others.

    ggml's threads spin on their cores while they compute and while they wait for the next layer. Beside a GPU
    there are two more threads: one launches the GPU's work ahead, and one copies experts to the GPU. Without
    cores of their own, they displace threads that compute, and every other thread waits for the displaced one
    at the end of each matrix. On an H100 with 16 CPUs and 16 threads, the GPU waited 622 µs a layer for the
    CPU's experts on average, but only 113 µs in the median. On four cores or fewer one core is left free:
    a second one would be too large a share. The simulated device computes on one core itself.
    """
    others = (2 if cores > 4 else 1) if gpu else int(simulated)
    return max(1, cores - others)


def threads_advice(threads: int, cores: int, default: int) -> str | None:
    """Returns one line for a user who asks for more threads than there are cores, else None."""
    if threads <= cores:
        return None
    where = f"{threads} threads on {cores} {'core' if cores == 1 else 'cores'}"
    return f"{where}: threads that have no core make all others wait; try --threads {default}"


def missing_features(system_info: str, machine: str = platform.machine()) -> list[str]:
    """What makes experts on the CPU slower than they could be, one line each.

    `system_info` is llama.cpp's line on the instruction sets that the library was built for.
    """
    if machine.lower() in ("x86_64", "amd64") and "AVX2 = 1" not in system_info:
        return ["no AVX2 in this build or CPU: experts on the CPU run slower"]
    return []
