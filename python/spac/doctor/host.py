"""Checks of the installation, the CPU and host memory."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import platform
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from spac import __version__, env
from spac.cli import config_file
from spac.doctor.trial import Finding
from spac.errors import InputError, one_line
from spac.machine import host_memory
from spac.machine.cpu import cpu_name, missing_features, physical_cores
from spac.machine.device_memory import size

EXTRAS = {
    "chat": ("prompt_toolkit", "rich"),
    "server": (
        "uvicorn", "starlette", "sse_starlette", "prometheus_client", "markdown_it",
        "mdit_py_plugins", "math_core", "pygments", "pypdf",
    ),
    "hf": ("huggingface_hub",),
    "completion": ("shtab",),
}  # fmt: skip
"""The modules behind the optional parts, by the name of their extra."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def python() -> Iterator[Finding]:
    """Yield the versions of spac, Python and the system."""
    yield Finding("spac", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")


def library() -> Iterator[Finding]:
    """Yield the library that is loaded, and the versions in it."""
    from spac import _core, _library

    pin, path = _core.llama_cpp_python_version, _library.library_path()
    variant = f"variant {path.parent.name} for this CPU, " if path.parent.name in _library.VARIANTS else ""
    yield Finding("library", "ok", f"{path}, {variant}of llama-cpp-python {pin}, ggml {_core.ggml_version()}")


def llama_cpp_python() -> Iterator[Finding]:
    """Yield the version of llama-cpp-python, or why it cannot be used."""
    name = "llama-cpp-python"
    is_there = importlib.machinery.PathFinder.find_spec("llama_cpp") is not None
    try:
        import llama_cpp
    except ImportError as error:  # its message has the remedy
        why = one_line(str(error))
        if is_there:
            yield Finding(name, "fault", "not usable", why)
        else:
            yield Finding(name, "off", "no", f"spac exec and spac.Llama need it: {why}")
        return
    yield Finding(name, "ok", f"{llama_cpp.__version__}, on spac's library")


def folders() -> Iterator[Finding]:
    """Yield the folders that keep things between runs."""
    for name, folder in (("cache", env.cache_folder()), ("state", env.state_folder())):
        near = next(part for part in (folder, *folder.parents) if part.exists())
        fine = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
        why = "" if fine else f"{near} cannot be written: nothing is kept between runs"
        yield Finding(name, "ok" if fine else "off", str(folder), why)


def config() -> Iterator[Finding]:
    """Yield the user's file of default options, and what it sets."""
    path = env.config_file()
    try:
        tables = config_file.read()
    except InputError as error:
        yield Finding("config", "fault", str(path), str(error))
        return
    keys = [f"[{name}] {', '.join(table)}" for name, table in tables.items() if table]
    yield Finding("config", "ok", f"{path}: {'; '.join(keys) or 'sets nothing'}")


def extras() -> Iterator[Finding]:
    """Yield the optional parts, and what is missing for them."""
    for extra in EXTRAS:
        missing = missing_modules(extra)
        why = f"not installed: {', '.join(missing)}; run `pip install 'spac[{extra}]'`" if missing else ""
        yield Finding(f"extra-{extra}", "off" if missing else "ok", "no" if missing else "installed", why)


def cpu(target: Path | None) -> Iterator[Finding]:
    """Yield the CPU's name and features, and spac's kernels for it."""
    from spac import _core

    info = _core.system_info()
    features = " ".join(re.findall(r"(\w+) = 1", info))
    why = "; ".join(missing_features(info))
    cores = f"{physical_cores()} cores of {os.cpu_count()} CPUs"
    yield Finding("cpu", "off" if why else "ok", f"{cpu_name()}, {cores}; {features}", why)
    yield _kernels(target)


def _kernels(target: Path | None) -> Finding:
    """Return which of spac's kernels there are, and which of them the CPU uses."""
    from spac import _core
    from spac.model import kernels
    from spac.model.devices import choose_devices, usual_threads
    from spac.model.gguf.check import check_model

    there, used = _core.cpu_kernels(), _core.trusted_cpu_kernels()
    name = "cpu kernels"
    if not there:
        return Finding(name, "off", "none", "this build has no AVX2, FMA and F16C: llama.cpp's own are used")
    if env.FORM.get("cpu-kernels") is False or not _core.cpu_kernels_enabled():
        return Finding(name, "off", f"{len(there)} types", f"{env.FORM.name}: llama.cpp's own are used")
    threads = usual_threads(choose_devices("auto"))
    types = kernels.kept_times(used, threads) if target is None else check_model(target).types
    chosen = kernels.described(kernels.choose(types, threads))
    measured = chosen or "none measured yet: a run measures the types of its models"
    unequal = [kind for kind in there if kind not in used]
    why = (
        f"{', '.join(unequal)}: not llama.cpp's results in this build, so its own are used" if unequal else ""
    )
    return Finding(name, "off" if why else "ok", f"{len(used)} of {len(there)} types; {measured}", why)


def memory(target: Path | None = None) -> Iterator[Finding]:
    """Yield the host's memory, and whether a model's experts fit."""
    free, total = host_memory.sizes()
    limit = host_memory.group_limit()
    bound = f", limited to {size(limit)} by its control group" if limit is not None and limit < total else ""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    lock = "unlimited" if locked == resource.RLIM_INFINITY else size(locked)
    yield Finding("memory", "ok", f"{size(free)} of {size(total)} available{bound}; lockable: {lock}")
    if target is not None:
        yield from _paging(target)


def _paging(target: Path) -> Iterator[Finding]:
    """Yield the size of a model's experts, and a reason if memory does not hold them all."""
    from spac.config import EngineConfig
    from spac.model.devices import choose_device
    from spac.model.gguf.check import check_model
    from spac.model.paging import is_paged

    info = check_model(target)
    if not info.is_moe:
        return
    device = choose_device("auto")
    paged = is_paged(EngineConfig(target=target), info, device)
    paged = paged or (device is None and info.expert_bytes > host_memory.sizes()[1])
    why = "memory does not hold all of them: those that are not there are read from the file" if paged else ""
    yield Finding("experts", "off" if paged else "ok", f"{target.name}: {size(info.expert_bytes)}", why)
