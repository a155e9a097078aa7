"""Describe the machine with the standard library alone: this runs first on an unknown machine.

    python facts.py

Every question may fail. A failure is printed, and nothing raises.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

MODULES = (
    "numpy", "cffi", "gguf", "pybind11", "jinja2", "diskcache", "typing_extensions", "tqdm", "yaml",
    "requests", "matplotlib", "pip",
)  # fmt: skip
TOOLS = ("gcc", "g++", "cmake", "ninja", "nvcc", "nvidia-smi", "git", "xz", "objcopy")
WRITTEN = 256 << 20  # bytes written to measure the disk's speed
_CPU_FLAGS = ("avx2", "f16c", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_int8")


def command(*words: str, seconds: float = 15) -> str:
    """Return the output of a command, or in brackets the reason why there is none."""
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=seconds, check=False, stdin=subprocess.DEVNULL
        )
        return done.stdout.strip() or f"({words[0]}: status {done.returncode}: {done.stderr.strip()[-200:]})"
    except FileNotFoundError:
        return f"({words[0]}: not there)"
    except (OSError, subprocess.SubprocessError) as error:
        return f"({words[0]}: {type(error).__name__})"


def capability() -> str:
    """Return the first GPU's compute capability without its dot ("90"), from the driver, or from nvidia-smi
    where the driver cannot be opened; "" without a GPU."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
            return ""
        for number, value in ((75, major), (76, minor)):  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_…
            if driver.cuDeviceGetAttribute(ctypes.byref(value), number, device):
                return ""
        return f"{major.value}{minor.value}"
    except (OSError, AttributeError):
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


def _disk(folder: Path) -> str:
    """Return bytes per second of writing and of reading again (which memory may answer)."""
    block, n = os.urandom(1 << 20), WRITTEN >> 20
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        begun = time.perf_counter()
        for _ in range(n):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        write = n * len(block) / (time.perf_counter() - begun)
    free = shutil.disk_usage(folder).free
    return f"{free / 1e9:.0f} GB free, {write / 1e9:.2f} GB/s written"


def processor_name() -> str:
    """Return the CPU's name, or the platform's where Linux does not know it."""
    try:
        found = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def machine() -> str:
    """Return what figures belong to: GPU, CPU and usable cores."""
    gpu = command("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").splitlines()[0]
    parts = ["no GPU" if gpu.startswith("(") else gpu, processor_name()]
    return ", ".join([*parts, f"{len(os.sched_getaffinity(0))} cores"])


def _processor() -> str:
    text = Path("/proc/cpuinfo").read_text()
    flags = re.findall(r"flags\s*: (.*)", text)
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
    shared = shutil.disk_usage("/dev/shm").total / 1e9 if Path("/dev/shm").exists() else 0
    total, free = (int(values.get(name, 0)) / 1e6 for name in ("MemTotal", "MemAvailable"))
    locked = command("sh", "-c", "ulimit -l")
    return f"{total:.0f} GB, {free:.0f} free{more}; /dev/shm {shared:.0f} GB; lockable: {locked}"


def _nvml() -> str:
    """Report if memory in use can be polled. Otherwise nvidia-smi is asked, which takes a while."""
    try:
        return "there" if ctypes.CDLL("libnvidia-ml.so.1").nvmlInit_v2() == 0 else "does not start"
    except (OSError, AttributeError) as error:
        return f"({error})"


def _gpu() -> str:
    fields = "name,driver_version,memory.total,memory.used,pcie.link.gen.max,pcie.link.width.max,compute_cap"
    return command("nvidia-smi", f"--query-gpu={fields},power.limit,clocks.max.sm", "--format=csv,noheader")


def _tools() -> str:
    lines = []
    for name in TOOLS:
        path = shutil.which(name)
        version = (
            command(name, "--version").splitlines()[-1 if name == "nvcc" else 0] if path else "not there"
        )
        lines.append(f"  {name}: {version}")
    return "\n" + "\n".join(lines)


def _python() -> str:
    missing = [name for name in MODULES if importlib.util.find_spec(name) is None]
    header = Path(_include()) / "Python.h"
    return (
        f"{sys.version.split()[0]} at {sys.executable}; headers {'there' if header.exists() else 'missing'}; "
        f"modules missing: {' '.join(missing) or 'none'}"
    )


def _include() -> str:
    import sysconfig

    return sysconfig.get_paths()["include"]


def lines(folder: Path) -> Iterator[str]:
    """Yield one line per fact, as they are found; some seconds in all. `folder`: where the work will lie."""
    questions: tuple[tuple[str, Callable[[], str]], ...] = (
        ("system", lambda: f"{platform.platform()}; {_release()}"),
        ("processor", _processor),
        ("memory", _memory),
        ("gpu", _gpu),
        ("capability", lambda: capability() or "(no driver)"),
        ("driver", lambda: command("nvidia-smi", "--version").replace("\n", "; ")),
        ("NVML", _nvml),
        ("cuBLAS", lambda: ", ".join(map(str, cublas_folders())) or "none found"),
        ("python", _python),
        ("disk", lambda: _disk(folder)),
        ("tools", _tools),
        ("topology", lambda: "\n" + command("nvidia-smi", "topo", "-m")),
    )
    for name, question in questions:
        try:
            yield f"{name}: {question()}"
        except Exception as error:
            yield f"{name}: ({type(error).__name__}: {error})"


def _release() -> str:
    return dict(
        re.findall(r'^(\w+)="?(.*?)"?$', Path("/etc/os-release").read_text(), re.MULTILINE)
    ).get("PRETTY_NAME", "?")  # fmt: skip


if __name__ == "__main__":
    for line in lines(Path()):
        print(line, flush=True)
