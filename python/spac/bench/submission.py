"""The comparison that a user can send in: llama.cpp and spac on this machine, as `docs/cards.md` lists them.

`spac bench --submit FILE` measures both on one model, in turns, without a draft: spac with as many experts in
slots as fit, and llama.cpp from the same library with as many whole layers of experts on the device
(--n-cpu-moe) as fit into that memory, without spac's kernels. Each has the best of a few numbers of threads.
FILE has figures of the machine, the model's shapes and the checks of `spac doctor`. It has no prompt, no path
and no name of a file or a person.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import TYPE_CHECKING, Any

from spac import __version__
from spac.bench.figures import Spread
from spac.config import EngineConfig
from spac.errors import OutOfMemoryError

if TYPE_CHECKING:
    from spac.doctor.trial import Finding
    from spac.model.gguf.info import ModelInfo
    from spac.stats import RunStats

SCHEMA = 1
ROUNDS = 3
"""The rounds in which the two systems are measured in turns, each with its best number of threads."""
TEXT_TOKENS = 96
PROMPT_TOKENS = 512
"""The tokens of a long prompt, at least, of which the reading is measured."""
FACTS = ("cpu", "cpu kernels", "cuda-build", "driver", "vulkan-build", "kernels", "gpu", "desktop", "split",
         "pinning", "memory", "vram")  # fmt: skip
"""The doctor's checks whose findings are sent. Others may have paths in them."""
SPAC, LLAMA_CPP = "spac", "llama.cpp"


@dataclass(frozen=True)
class System:
    """One of the two systems, with a number of threads."""

    name: str
    threads: int
    cpu_layers: int | None = None
    """The layers whose experts are on the CPU; None for spac."""

    def config(self, base: EngineConfig) -> EngineConfig:
        """Return `base` for this system."""
        return replace(
            base, threads=self.threads, cpu_expert_layers=self.cpu_layers, state="off", draft_length=0
        )


@dataclass(frozen=True)
class Figures:
    """The figures of one load: medians over its texts."""

    tokens_per_second: float
    prompt_tokens_per_second: float | None
    first_token_s: float | None
    hit_rate: float | None
    slots: int
    n_experts: int
    slot_bytes: int
    vram_bytes: int

    @classmethod
    def of(cls, texts: Iterable[RunStats], prompt: RunStats) -> Figures:
        """Return the figures of texts, and of a long prompt."""
        stats = list(texts)
        speeds = [each.tokens_per_second for each in stats if each.tokens_per_second]
        hits = [each.hit_rate for each in stats if each.hit_rate is not None]
        last, prefill = stats[-1], (prompt.prefill_tokens_per_second, prompt.time_to_first_token_s)
        return cls(
            median(speeds) if speeds else 0.0, *prefill, median(hits) if hits else None,
            last.slots, last.n_experts, last.slot_bytes, prompt.vram_bytes,
        )  # fmt: skip


class Submission:
    """One comparison, which takes about `seconds`."""

    def __init__(
        self, base: EngineConfig, prompts: list[str], say: Callable[[str], object], seconds: float
    ) -> None:
        """Take the settings that both systems share. `say` receives a line for each measurement."""
        self._base, self._prompts, self._say, self._seconds = base, prompts, say, seconds
        self._begun = time.monotonic()
        self.figures: dict[System, list[Figures]] = {}
        """The figures by system, in the order of the measurements."""

    def run(self) -> dict[str, Any]:
        """Measure, and return what the file has. Raise InputError, OutOfMemoryError or SpacError."""
        from spac.model.devices import choose_devices
        from spac.model.gguf.check import check_model

        info = check_model(self._base.target)
        devices = choose_devices(self._base.device)
        on_gpu = any(not device.shares_host_cores for device in devices)
        ours = self._best(System(SPAC, n) for n in _threads(on_gpu=on_gpu))
        layers = self._layers_on_cpu(info, ours) if devices else None
        theirs = self._filled(
            self._best(System(LLAMA_CPP, n, layers) for n in _threads(on_gpu=False)), ours, info
        )
        for i in range(ROUNDS - 1):
            if self._is_late(2):
                break
            for system in (theirs, ours) if i % 2 else (ours, theirs):
                self._measure(system)
        return self._report(info, ours, theirs, is_simulated=bool(devices) and not on_gpu)

    def _best(self, systems: Iterable[System]) -> System:
        """Measure systems once, and return the one that decodes fastest."""
        found = list(systems)
        for system in found:
            if system is found[0] or not self._is_late(1):
                self._measure(system)
        return max(
            (each for each in found if each in self.figures),
            key=lambda each: self.figures[each][0].tokens_per_second,
        )

    def _is_late(self, n: int) -> bool:
        """Return True if `n` further measurements would take longer than what is left."""
        spent = time.monotonic() - self._begun
        done = sum(map(len, self.figures.values()))
        return done > 0 and spent + n * spent / done > self._seconds

    def _filled(self, theirs: System, ours: System, info: ModelInfo) -> System:
        """Return llama.cpp with further layers of experts in what spac has beside its slots."""
        left = self.figures[ours][0].vram_bytes - self.figures[theirs][0].vram_bytes
        more = min(theirs.cpu_layers or 0, left * 5 // max(1, 6 * info.mean_expert_layer))  # types differ
        if more <= 0 or self._is_late(1):
            return theirs
        fuller = replace(theirs, cpu_layers=(theirs.cpu_layers or 0) - more)
        try:
            self._measure(fuller)
        except OutOfMemoryError:
            return theirs
        return fuller

    def _layers_on_cpu(self, info: ModelInfo, ours: System) -> int:
        """Return the least layers of experts on the CPU with which llama.cpp has no more memory than spac."""
        found = self.figures[ours][0]
        if found.n_experts == 0:  # spac ran the model without the split: everything is on the device
            return 0
        on_device = found.slot_bytes // max(1, info.mean_expert_layer)
        return max(0, info.n_expert_layers - on_device)

    def _measure(self, system: System) -> None:
        """Load a system, generate its texts, and keep the figures."""
        from spac import _core
        from spac.engine import Engine

        enabled = _core.cpu_kernels_enabled()
        _core.set_cpu_kernels(enabled and system.name == SPAC)
        try:
            with closing(Engine(system.config(self._base))) as engine:

                def text(prompt: str, n: int) -> RunStats:
                    generation = engine.generate(prompt, n)
                    for _ in generation:
                        pass
                    return generation.stats

                long = _long(self._prompts, lambda words: len(engine.tokenize(words)))
                text(self._prompts[-1], TEXT_TOKENS)  # experts come to their slots, and costs are learned
                prompt = text(long, 8)
                found = Figures.of([text(each, TEXT_TOKENS) for each in self._prompts], prompt)
        finally:
            _core.set_cpu_kernels(enabled)
        self.figures.setdefault(system, []).append(found)
        layers = f", experts of {system.cpu_layers} layers on the CPU" if system.cpu_layers else ""
        self._say(
            f"{system.name}, {system.threads} threads{layers}: {found.tokens_per_second:.1f} tokens/s, "
            f"{found.vram_bytes / 1e9:.2f} GB of GPU memory"
        )

    def _report(self, info: ModelInfo, ours: System, theirs: System, *, is_simulated: bool) -> dict[str, Any]:
        ratios = [
            mine.tokens_per_second / other.tokens_per_second
            for mine, other in zip(self.figures[ours], self.figures[theirs], strict=False)
            if other.tokens_per_second
        ]
        return {
            "schema": SCHEMA,
            "spac": __version__,
            "month": time.strftime("%Y-%m"),
            "is_simulated": is_simulated,
            "machine": _machine(),
            "doctor": [_sent(each) for each in _checks()],
            "model": _shapes(info),
            "context": self._base.ctx,
            "vram_limit": None if self._base.vram_limit is None else str(self._base.vram_limit),
            "ratio": asdict(spread) if (spread := Spread.of(ratios)) is not None else None,
            "systems": [
                {
                    "system": system.name,
                    "is_best": system in (ours, theirs),
                    "threads": system.threads,
                    "expert_layers_on_cpu": system.cpu_layers,
                    "rounds": [asdict(each) for each in rounds],
                }
                for system, rounds in self.figures.items()
            ],
        }


def _threads(*, on_gpu: bool) -> list[int]:
    """Return numbers of threads to try. Beside a GPU, spac leaves cores to the threads that drive it."""
    from spac.machine.cpu import default_threads, physical_cores

    cores = physical_cores()
    usual = default_threads(cores, gpu=on_gpu)
    return list(dict.fromkeys(n for n in (usual, cores, cores - 2) if n > 0))


def _long(prompts: list[str], count: Callable[[str], int]) -> str:
    """Return a prompt of `PROMPT_TOKENS` tokens at least that begins differently from all others."""
    text = "Long: "
    while count(text) < PROMPT_TOKENS:
        text += "".join(prompts)
    return text


def _machine() -> dict[str, Any]:
    """Return what the machine is, without names of its own."""
    from spac import _core
    from spac.machine import host_memory, nvidia
    from spac.machine.cpu import cpu_name, physical_cores

    return {
        "cpu": cpu_name(),
        "cores": physical_cores(),
        "memory_bytes": host_memory.sizes()[1],
        "system": f"{platform.system()} {platform.machine()}",
        "wsl2": nvidia.on_wsl(),
        "driver_cuda": nvidia.driver_cuda(),
        "build_cuda": _core.cuda_version,
        "devices": [
            {
                "name": device.name,
                "description": device.description,
                "memory_bytes": device.memory.total,
                "capability": nvidia.capability(device.name),
            }
            for device in _core.devices()
            if not device.shares_host_cores
        ],
    }


def _checks() -> Iterable[Finding]:
    from spac.doctor import examine

    return examine(self_test=False)


def _sent(finding: Finding) -> dict[str, str]:
    """Return what is sent of a check: its name and state, and what it found where that has no path."""
    found = {"name": finding.name, "state": finding.state}
    return found | {"found": finding.found, "why": finding.why} if finding.name in FACTS else found


def _shapes(info: ModelInfo) -> dict[str, Any]:
    """Return a model's shapes and types."""
    same = ("architecture", "n_layer", "n_embd", "n_expert", "n_expert_used", "expert_bytes", "expert_types")
    other = {"expert_layers": info.n_expert_layers, "file_bytes": info.file_size}
    return {name: getattr(info, name) for name in same} | other
