"""Install Python modules that a machine lacks from wheels, without pip and without a network."""

from __future__ import annotations

import importlib.util
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

# Modules that the suite imports, by the names of their distributions.
NEEDED = {
    "numpy": "numpy",
    "cffi": "cffi",
    "pycparser": "pycparser",
    "gguf": "gguf",
    "tqdm": "tqdm",
    "yaml": "pyyaml",
    "pybind11": "pybind11",
    "jinja2": "jinja2",
    "markupsafe": "markupsafe",
    "diskcache": "diskcache",
    "typing_extensions": "typing_extensions",
    "llama_cpp": "llama_cpp_python",
}
PROGRAMS = {"ninja": "ninja"}


def fits(wheel: str, version: tuple[int, int] = sys.version_info[:2]) -> bool:
    """Return True if a wheel's name says that it runs on this Python (CPython, x86-64 Linux or anything)."""
    match = re.fullmatch(r"[^-]+-[^-]+(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl", wheel)
    if match is None:
        return False
    python, abi, platform = match.groups()
    own = f"cp{version[0]}{version[1]}"
    stable = abi == "abi3" and any(
        int(minor) <= version[1] for minor in re.findall(r"cp3(\d+)", python)
    )  # fmt: skip
    return (
        (abi == own or stable or (abi == "none" and any(p in ("py3", own) for p in python.split("."))))
        and (platform == "any" or sysconfig.get_platform().replace("-", "_").split("_", 1)[1] in platform)
    )  # fmt: skip


def install(wheels: Path, folder: Path) -> list[str]:
    """Unpack the missing modules into a folder, which is for PYTHONPATH. Return the modules that are still
    missing, none in the best case."""
    folder.mkdir(parents=True, exist_ok=True)
    sys.path.insert(0, str(folder))
    missing = []
    for module, name in NEEDED.items():
        # llama_cpp must be the pinned version. Of other modules any version will do.
        if module != "llama_cpp" and importlib.util.find_spec(module) is not None:
            continue
        if not unpack(wheels, name, folder):
            missing.append(module)
    return missing


def unpack(wheels: Path, name: str, folder: Path) -> bool:
    """Unpack a wheel of that distribution. Return True if there was one for this Python."""
    for wheel in sorted(wheels.glob("*.whl")):
        if wheel.name.split("-")[0].lower().replace("-", "_") == name and fits(wheel.name):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder)
            return True
    return False
