"""What the machine has and lacks."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def physical_cores() -> int:
    """Cores that this process may use; hyperthreads of one core count once, where the system tells."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings.strip())
    return max(1, len(cores))


def missing_features(system_info: str, machine: str = platform.machine()) -> list[str]:
    """What makes experts on the CPU slower than they could be, one line each.

    `system_info` is llama.cpp's line on the instruction sets that the library was built for.
    """
    if machine.lower() in ("x86_64", "amd64") and "AVX2 = 1" not in system_info:
        return ["no AVX2 in this build or CPU: experts on the CPU run slower"]
    return []


def repacking_pays() -> bool:
    """Whether a model with experts that runs on the CPU alone should have its weights repacked by llama.cpp.

    That takes time and memory, and its kernels cost per token; ours read weights as the file has them, and
    every further token costs less. It pays where there are none of ours, and where AMX computes dense layers.
    """
    from spac import _core

    ours = _core.cpu_kernels_enabled() and bool(_core.trusted_cpu_kernels())
    return not ours or "AMX_INT8 = 1" in _core.system_info()
