"""Checks of the CPU and of host memory."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator
from pathlib import Path

from spac.doctor.trial import Finding
from spac.machine import host_memory
from spac.machine.cpu import cpu_name, missing_features, physical_cores
from spac.machine.device_memory import size


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
    from spac.model.gguf.check import check_model

    there, used = _core.cpu_kernels(), _core.trusted_cpu_kernels()
    name = "cpu kernels"
    if not there:
        return Finding(name, "off", "none", "this build has no AVX2, FMA and F16C: llama.cpp's own are used")
    if not _core.cpu_kernels_enabled():
        return Finding(name, "off", f"{len(there)} types", "SPAC_CPU_KERNELS=0: llama.cpp's own are used")
    threads = physical_cores()
    types = kernels.kept_times(threads) if target is None else check_model(target).types
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


def huge_pages() -> Iterator[Finding]:
    """Yield the huge pages that the machine offers."""
    from spac.model import huge_pages

    why = huge_pages.missing()
    yield Finding("huge pages", "off" if why else "ok", "none" if why else "pages of 2 MB", why)


def _paging(target: Path) -> Iterator[Finding]:
    """Yield the size of a model's experts, and a reason if memory does not hold them all."""
    from spac.config import EngineConfig
    from spac.model.devices import choose_device
    from spac.model.gguf.check import check_model
    from spac.model.paging import is_paged

    info = check_model(target)
    if not info.is_moe:
        return
    paged = is_paged(EngineConfig(target=target), info, choose_device("auto"))
    why = "memory does not hold all of them: those that are not there are read from the file" if paged else ""
    yield Finding("experts", "off" if paged else "ok", f"{target.name}: {size(info.expert_bytes)}", why)
