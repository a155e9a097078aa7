"""Describe the machine with the standard library alone: this runs first on an unknown machine.

    python facts.py

Every question may fail. A failure is printed, and nothing raises.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

TOOLS = ("gcc", "g++", "cmake", "ninja", "nvcc", "nvidia-smi")
_CPU_FLAGS = ("avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8")


def command(*words: str) -> str:
    """Return the output of a command, or in brackets the reason why there is none."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=15, check=False, stdin=subprocess.DEVNULL
        )
        return done.stdout.strip() or f"({words[0]}: status {done.returncode}: {done.stderr.strip()[-200:]})"
    except FileNotFoundError:
        return f"({words[0]}: not there)"
    except (OSError, subprocess.SubprocessError) as error:
        return f"({words[0]}: {type(error).__name__})"


def capability() -> str:
    """Return the first GPU's compute capability without its dot ("90"); "" without a GPU."""
    said = command("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader").splitlines()[0]
    return said.replace(".", "") if re.fullmatch(r"\d+\.\d", said) else ""


def cublas_folders() -> list[Path]:
    """Return folders of a libcublas.so.*, likeliest first: Python's packages, the toolkit, the loader's
    cache."""
    found = [path for folder in sys.path for path in Path(folder or ".").glob("nvidia/*/lib/libcublas.so.*")]
    found += [path for pattern in ("cuda*/lib64", "cuda*/targets/*/lib") for path in Path("/usr/local").glob(
        f"{pattern}/libcublas.so.*")]  # fmt: skip
    cached = command("ldconfig", "-p")
    found += [Path(path) for path in re.findall(r"=> (\S*libcublas\.so\.\S*)", cached)]
    return list(dict.fromkeys(path.parent for path in found))


def processor_name() -> str:
    """Return the CPU's name, or the platform's where Linux does not know it."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _processor() -> str:
    flags = re.findall(r"flags\s*: (.*)", Path("/proc/cpuinfo").read_text())
    found = [flag for flag in _CPU_FLAGS if flags and flag in flags[0].split()]
    siblings = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        siblings.add(path.read_text().strip() if path.exists() else str(cpu))
    usable = len(os.sched_getaffinity(0))
    return f"{processor_name()}: {usable} usable, {len(siblings)} cores; {' '.join(found)}"


def _memory() -> str:
    values = dict(re.findall(r"(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text()))
    limit = Path("/sys/fs/cgroup/memory.max")
    more = f", cgroup {limit.read_text().strip()}" if limit.exists() else ""
    total, free = (int(values.get(name, 0)) / 1e6 for name in ("MemTotal", "MemAvailable"))
    locked = command("sh", "-c", "ulimit -l")
    return f"{total:.0f} GB, {free:.0f} free{more}; lockable: {locked}"


def _gpu() -> str:
    fields = "name,driver_version,memory.total,memory.used,pcie.link.gen.max,pcie.link.width.max,compute_cap"
    return command("nvidia-smi", f"--query-gpu={fields},power.limit,clocks.max.sm", "--format=csv,noheader")


def _python() -> str:
    header = Path(sysconfig.get_paths()["include"]) / "Python.h"
    there = "there" if header.exists() else "missing"
    return f"{sys.version.split()[0]} at {sys.executable}; headers {there}"


def _tools() -> str:
    def version(name: str) -> str:
        return command(name, "--version").splitlines()[-1 if name == "nvcc" else 0]

    return "\n" + "\n".join(f"  {name}: {version(name)}" for name in TOOLS)


def lines(folder: Path) -> Iterator[str]:
    """Yield one line per fact, as they are found. `folder`: where the work will lie."""
    questions: tuple[tuple[str, Callable[[], str]], ...] = (
        ("system", platform.platform),
        ("processor", _processor),
        ("memory", _memory),
        ("disk", lambda: f"{shutil.disk_usage(folder).free / 1e9:.0f} GB free"),
        ("gpu", _gpu),
        ("cuBLAS", lambda: ", ".join(map(str, cublas_folders())) or "none found"),
        ("python", _python),
        ("tools", _tools),
    )
    for name, question in questions:
        try:
            yield f"{name}: {question()}"
        except Exception as error:
            yield f"{name}: ({type(error).__name__}: {error})"


if __name__ == "__main__":
    for line in lines(Path()):
        print(line, flush=True)
