"""Checks of this machine, for `spac doctor` or `python -m spac.doctor --json`: what is off, and why.

The exit code is 0 if models can run here, 1 if something prevents that, and 2 for a bad option or target. A
finding that only slows models down, or a missing extra, does not change the exit code.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import importlib.machinery
import importlib.util
import json
import os
import platform
import re
import resource
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spac import __version__, env
from spac.cli.hub import add_hub, target_of
from spac.cli.options import Parser, add_config
from spac.cli.program import add_talk, guarded
from spac.config import EngineConfig
from spac.config.values import VramLimit
from spac.doctor.trial import Finding, State, Trial
from spac.errors import SpacError, one_line
from spac.machine import host_memory
from spac.machine.cpu import cpu_name, missing_features, physical_cores
from spac.machine.device_memory import size

EXTRAS = {
    "chat": ("prompt_toolkit", "rich"),
    "server": (
        "fastapi",
        "uvicorn",
        "sse_starlette",
        "starlette_context",
        "pydantic_settings",
        "prometheus_client",
        "markdown_it",
        "pygments",
    ),
    "hf": ("huggingface_hub",),
}
"""The modules behind the optional parts, by the name of their extra."""


def missing_modules(extra: str) -> list[str]:
    """Return the modules of an extra that are not installed."""
    return [name for name in EXTRAS[extra] if importlib.util.find_spec(name) is None]


def examine(
    target: Path | None = None,
    vram_limit: VramLimit | None = None,
    self_test: bool | None = None,
    mmproj: Path | None = None,
) -> Iterator[Finding]:
    """Yield the findings of all checks, in order. A check that fails does not stop the later ones.

    With a `target`, a finding says how much of the model fits on the device within `vram_limit`, beside the
    projector `mmproj`. `self_test` says if every mechanism is tried; None tries them on GPUs, not on the
    simulated device.
    """
    room = functools.partial(_vram, target, vram_limit, mmproj)
    trial = Trial(self_test)
    checks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("python", _python), ("library", _library), ("llama-cpp-python", _llama_cpp_python),
        ("cpu", functools.partial(_cpu, target)), ("threads", functools.partial(_threads, target)),
        ("repacking", functools.partial(_repacking, target)),
        ("gpu", _gpu), ("images", functools.partial(_images, target, mmproj)), ("vram", room),
        ("memory", functools.partial(_memory, target)),
        ("huge pages", functools.partial(_huge_pages, target)), ("folders", _folders), ("extras", _extras),
        ("self-test", trial.findings), ("demo", lambda: trial.heeded(_demo)),
    ]  # fmt: skip
    for name, check in checks:
        try:
            yield from check()
        except Exception as error:  # a check that fails is a finding too
            yield Finding(name, "fault", "-", one_line(str(error)) or type(error).__name__)


def _python() -> Iterator[Finding]:
    yield Finding("spac", "ok", f"{__version__}, Python {platform.python_version()}, {platform.platform()}")


def _library() -> Iterator[Finding]:
    from spac import _core, _library

    pin, path = _core.llama_cpp_python_version, _library.library_path()
    variant = f"variant {path.parent.name} for this CPU, " if path.parent.name in _library.VARIANTS else ""
    yield Finding("library", "ok", f"{path}, {variant}of llama-cpp-python {pin}, ggml {_core.ggml_version()}")


def _llama_cpp_python() -> Iterator[Finding]:
    name = "llama-cpp-python"
    is_there = importlib.machinery.PathFinder.find_spec("llama_cpp") is not None
    try:
        import llama_cpp
    except ImportError as error:  # its message has the remedy
        why = one_line(str(error))
        if is_there:
            yield Finding(name, "fault", "not usable", why)
        else:
            yield Finding(name, "off", "no", f"spac serve, spac exec and spac.Llama need it: {why}")
        return
    yield Finding(name, "ok", f"{llama_cpp.__version__}, on spac's library")


def _cpu(target: Path | None) -> Iterator[Finding]:
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


def _threads(target: Path | None) -> Iterator[Finding]:
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


def _repacking(target: Path | None) -> Iterator[Finding]:
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


def _gpu() -> Iterator[Finding]:
    from spac import _core, _library
    from spac.model import pinning

    built = hasattr(ctypes.CDLL(str(_library.library_path())), "ggml_backend_cuda_reg")
    why = "" if built else "built without CUDA: install the toolkit and spac anew, with -DSPAC_CUDA=on"
    yield Finding("cuda-build", "ok" if built else "off", "yes" if built else "no", why)
    driver = _driver()
    why = "" if driver else "no NVIDIA driver: its library libcuda.so.1 cannot be loaded"
    yield Finding("driver", "ok" if driver else "off", driver or "none", why)
    devices = [device for device in _core.devices() if not device.shares_host_cores]
    for device in devices:
        free, total = size(device.memory_free), size(device.memory_total)
        yield Finding("gpu", "ok", f"{device.name}, {device.description}, {free} of {total} free")
    if not devices:
        yield Finding("gpu", "off", "none", _why_no_gpu(built, driver))
    else:
        found, why = pinning.outlook(devices)
        yield Finding("pinning", "off" if why else "ok", found, why)


def _images(target: Path | None, mmproj: Path | None) -> Iterator[Finding]:
    """Yield whether the model sees images."""
    from spac.model.gguf.check import check_projector

    if mmproj is not None:
        kind, n_bytes = check_projector(mmproj), mmproj.stat().st_size
        yield Finding("images", "ok", f"{mmproj.name}: {size(n_bytes)}, a projector {kind}")
    elif target is not None:
        yield Finding("images", "off", "text alone is read", "--mmproj FILE names a model's projector")


def _vram(target: Path | None, limit: VramLimit | None, mmproj: Path | None = None) -> Iterator[Finding]:
    """Yield the memory free for models on the default device, and the part of a model that fits."""
    from spac.model.device_room import device_room, fit
    from spac.model.gguf.check import check_model

    room = device_room(limit)
    if room is None or room.device is None:
        return
    if room.device.shares_host_memory and target is None and limit is None:
        return
    of = f" of the {size(room.allowed)} that --vram-limit allows" if limit is not None else ""
    yield Finding("vram", "ok", f"{room.device.name}: room for {size(room.free)}{of}, a margin left free")
    if target is None:
        return
    info = check_model(target)
    fitting = fit(info, room, 0 if mmproj is None else mmproj.stat().st_size)
    dense = size(fitting.dense_bytes)
    experts = f"{dense} beside the experts, {size(info.expert_bytes)} of experts"
    found = f"{target.name}: {experts if info.is_moe else dense}"
    if room.free < fitting.dense_bytes:
        why = f"{dense} must be on the device, and there is room for {size(room.free)}"
        yield Finding("fit", "off", found, why)
    else:
        of_them = f", {fitting.share:.0%} of them fit as far as contexts leave room" if info.is_moe else ""
        yield Finding("fit", "ok", found + of_them)


def _why_no_gpu(built: bool, driver: str) -> str:
    if not built or not driver:
        what = "a CUDA build" if driver else "a driver" if built else "a CUDA build and a driver"
        return f"needs {what}: everything runs on the CPU; --device simulated shows the split"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return "the driver offers no device" + (
        f": CUDA_VISIBLE_DEVICES is '{visible}'" if visible is not None else ""
    )


def _driver() -> str:
    """Return the NVIDIA driver's version and the CUDA version that it supports; "" without a driver."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    version = ctypes.c_int()
    if library.cuDriverGetVersion(ctypes.byref(version)) != 0:
        return ""
    cuda = f"CUDA {version.value // 1000}.{version.value % 1000 // 10}"
    try:
        text = Path("/proc/driver/nvidia/version").read_text()
    except OSError:  # WSL2 has no such file
        return cuda
    match = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", text)
    return f"{match[1]}, {cuda}" if match else cuda


def _memory(target: Path | None = None) -> Iterator[Finding]:
    free, total = host_memory.sizes()
    limit = host_memory.group_limit()
    bound = f", limited to {size(limit)} by its control group" if limit is not None and limit < total else ""
    locked = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    lock = "unlimited" if locked == resource.RLIM_INFINITY else size(locked)
    yield Finding("memory", "ok", f"{size(free)} of {size(total)} available{bound}; lockable: {lock}")
    if target is not None:
        yield from _paging(target)


def _huge_pages(target: Path | None) -> Iterator[Finding]:
    """Yield the huge pages that the machine offers, and the gain for a model."""
    from spac.model import huge_pages
    from spac.model.gguf.check import check_model

    info = check_model(target) if target is not None else None
    found, why = huge_pages.outlook(info, physical_cores())
    yield Finding("huge pages", "off" if why else "ok", found, why)


def _paging(target: Path) -> Iterator[Finding]:
    """Yield the size of a model's experts, and a reason if memory does not hold them all."""
    from spac.config import EngineConfig
    from spac.model.gguf.check import check_model
    from spac.model.paging import is_paged
    from spac.model.pair import choose_device

    info = check_model(target)
    if not info.is_moe:
        return
    paged = is_paged(EngineConfig(target=target), info, choose_device("auto"))
    why = "memory does not hold all of them: those that are not there are read from the file" if paged else ""
    yield Finding("experts", "off" if paged else "ok", f"{target.name}: {size(info.expert_bytes)}", why)


def _folders() -> Iterator[Finding]:
    for name, folder in (("cache", env.cache_folder()), ("state", env.state_folder())):
        near = next(part for part in (folder, *folder.parents) if part.exists())
        fine = near.is_dir() and os.access(near, os.W_OK | os.X_OK)
        why = "" if fine else f"{near} cannot be written: nothing is kept between runs"
        yield Finding(name, "ok" if fine else "off", str(folder), why)


def _extras() -> Iterator[Finding]:
    for extra in EXTRAS:
        missing = missing_modules(extra)
        why = f"not installed: {', '.join(missing)}; run `pip install 'spac[{extra}]'`" if missing else ""
        yield Finding(f"extra-{extra}", "off" if missing else "ok", "no" if missing else "installed", why)


def _demo() -> Iterator[Finding]:
    """Load the bundled pair with its split, and generate a few tokens. This check covers the others."""
    if importlib.util.find_spec("spac.demo") is None:
        yield Finding("demo", "off", "none", "this installation has no demo pair")
        return
    from spac import demo
    from spac.config import EngineConfig, SamplingConfig
    from spac.engine import Engine

    config = EngineConfig(demo.TARGET, demo.DRAFT, ctx=512, state="off", sampling=SamplingConfig(temp=0))
    try:
        with Engine(config) as engine:
            generation = engine.generate(demo.PROMPT, max_tokens=16)
            text = "".join(generation)
            stats = generation.stats
            if engine.experts is not None and engine.device is not None:
                shared = engine.device.shares_host_memory
                yield Finding("expert-memory", *_expert_memory(engine.experts.host_memory, shared))
    except SpacError as error:
        yield Finding("demo", "fault", "does not run", str(error))
        return
    speed = f"{stats.tokens_per_second:.0f} tokens/s" if stats.tokens_per_second else "no speed"
    state: State = "ok" if text and stats.generated_tokens else "fault"
    found = (
        f"{stats.generated_tokens} tokens at {speed} on {stats.device}, hit rate {stats.hit_rate or 0:.0%}"
    )
    yield Finding("demo", state, found, "" if state == "ok" else "it generates nothing")


def _expert_memory(way: str, shares_host_memory: bool) -> tuple[State, str, str]:
    if shares_host_memory or way.startswith("pinned"):
        return "ok", way, ""
    if way == "paged":
        return "off", way, "memory does not hold all experts: those that are not there are read from the file"
    return (
        "off",
        way,
        "the mapping of the model is not pinned, or in part: uploads are slower (the driver, SPAC_PIN, "
        "SPAC_PIN_LIMIT)",
    )


def make_parser() -> Parser:
    """Return the parser with the options of `spac doctor`."""
    parser = Parser(
        prog="spac doctor", description="Tell what was found on this machine, and what is off and why."
    )
    parser.add_argument("--json", action="store_true", help="as one line of JSON")
    parser.add_argument("--target", "--model", "-m", metavar="FILE", type=Path,
                        help="also tell how much of this model would fit")  # fmt: skip
    parser.add_argument("--self-test", action=argparse.BooleanOptionalAction, default=None,
                        help="try every mechanism of the split in a process of its own "
                             "(default: on GPUs, not on the simulated device)")  # fmt: skip
    add_config(parser, EngineConfig, ("vram_limit", "mmproj"))
    add_talk(parser)
    add_hub(parser, draft=False)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all checks, print their findings, and return 1 if something keeps models from running."""
    parser = make_parser()
    options = parser.parse_args(arguments)
    return guarded(parser, options, lambda: _examine_and_report(options))


def _examine_and_report(options: argparse.Namespace) -> int:
    from spac.model.gguf.check import check_model, check_projector

    n_embd = None
    if (target := target_of(options)) is not None:
        n_embd = check_model(target).n_embd  # one line for a wrong path, and not a fault of every check
    if (mmproj := getattr(options, "mmproj", None)) is not None:
        check_projector(mmproj, n_embd)
    limit = getattr(options, "vram_limit", None)
    return _report(options.json, examine(target, limit, options.self_test, mmproj))


def _report(as_json: bool, found: Iterator[Finding]) -> int:
    findings = []
    for finding in found:
        findings.append(finding)
        if not as_json:
            mark = {"ok": "  ", "off": "- ", "fault": "! "}[finding.state]
            print(f"{mark}{finding.name:<20}{finding.found}", flush=True)
            if finding.why:
                print(f"{'':<22}{finding.why}", flush=True)
    healthy = all(finding.state != "fault" for finding in findings)
    if as_json:
        report: dict[str, Any] = {
            "schema": 1,
            "healthy": healthy,
            "findings": [asdict(one) for one in findings],
        }
        print(json.dumps(report))
    return 0 if healthy else 1
