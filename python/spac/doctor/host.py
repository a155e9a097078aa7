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
    types = kernels.kept(threads) if target is None else check_model(target).types
    chosen = kernels.choose(types, threads)
    dense = kernels.described_dense({kind: _core.chosen_dense_cpu_kernels(kind) for kind in chosen})
    measured = (
        kernels.described(chosen) + (f"; dense matrices: {dense}" if dense else "")
        or "none measured yet: a run measures the types of its models"
    )
    unequal = [kind for kind in there if kind not in used]
    why = (
        f"{', '.join(unequal)}: not llama.cpp's results in this build, so its own are used" if unequal else ""
    )
    return Finding(name, "off" if why else "ok", f"{len(used)} of {len(there)} types; {measured}", why)


def threads(target: Path | None) -> Iterator[Finding]:
    """Yield the number of threads that computes a token of a model fastest, and the times of all numbers."""
    from spac.model import threads
    from spac.model.gguf.check import check_model

    info = check_model(target) if target is not None else None
    kind = threads.most_read_type(info) if info is not None else None
    most = physical_cores()
    if kind is None or most < 2:
        return
    times = threads.measured(kind, threads.candidates(most))
    listed = ", ".join(f"{count}: {seconds * 1e6:.0f} µs" for count, seconds in times.items())
    found = (
        f"{threads.fastest(times)} for a token on the CPU alone; time of {kind} experts by threads: {listed}"
    )
    yield Finding("threads", "ok", found)


def repacking(target: Path | None) -> Iterator[Finding]:
    """Yield the choice to repack a model's weights on the CPU alone, and the gain of it."""
    from spac import _core
    from spac.model import kernels, repacking
    from spac.model.gguf.check import check_model

    info = check_model(target) if target is not None else None
    if info is None or not info.is_moe or not _core.cpu_kernels_enabled():
        return
    threads = physical_cores()
    kernels.choose(info.types, threads)
    gain = repacking.gain(info, threads)
    choice = "repacked" if gain > repacking.LEAST_GAIN else "as the file has them"
    ratio = f"repacked they are {gain:.2f} times as fast" if gain != 1.0 else "llama.cpp repacks none of them"
    yield Finding("repacking", "ok", f"weights of {info.path.name} on the CPU alone: {choice}; {ratio}")


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


def huge_pages(target: Path | None) -> Iterator[Finding]:
    """Yield the huge pages that the machine offers, and the gain for a model."""
    from spac.model import huge_pages
    from spac.model.gguf.check import check_model

    info = check_model(target) if target is not None else None
    found, why = huge_pages.outlook(info, physical_cores())
    yield Finding("huge pages", "off" if why else "ok", found, why)


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
