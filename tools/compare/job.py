"""Describe a worker's job, as data that goes through a JSON file, and the result of a comparison."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SIMULATED_DEVICE = "simulated"


@dataclass(frozen=True)
class Settings:
    """Settings of a context. Both libraries must have the same settings."""

    n_ctx: int = 1024
    n_batch: int = 512
    n_ubatch: int = 256
    n_threads: int = 1
    flash_attn: bool = False
    paged: bool = False  # experts stay in the file until they are needed; spac alone
    embeddings: bool = False  # compare embeddings: encoders have no logits
    mtp: bool = False  # load prediction layers, with a context that gets the target's hidden states
    params: dict[str, float] = field(default_factory=dict)  # further fields of llama_context_params


HALF = Settings(n_batch=256, n_ubatch=128)
"""Settings for the script "half", which cut its long prompt as the defaults cut that of "full"."""


@dataclass(frozen=True)
class Run:
    """One pass of the script over a case. A reference ignores every field except `name`.

    `share` of all experts get slots, which a random plan of `seed` fills before the first step. With
    `moving`, a new plan is submitted before every step and nobody waits for it. With `midway`, every step
    begins with a settled plan, and a new plan comes during the step. Without `masked`, the device does not
    read the ids masks itself. Batches of `stream_tokens` tokens and more have their experts copied through
    the device. Without `ahead`, work behind the host's part of a layer is queued only after that part is
    done. With `in_place`, kernels exchange data between the sides in the host's memory, without copies.
    `lookahead` is the distance in layers to the later layer whose router gets each layer's input. `miss` is
    the side that computes what is not resident; with `recent`, loaded experts take the places of wanted ones.
    """

    name: str = "reference"
    share: float = 0.0
    seed: int = 0
    moving: bool = False
    midway: bool = False
    masked: bool = True
    fail_uploads: int = 0
    stream_tokens: int = 0
    ahead: bool = True
    in_place: bool = False
    lookahead: int = 0
    miss: str = "cpu"
    recent: bool = False


@dataclass(frozen=True)
class Case:
    """A model file, the settings of its contexts, and the runs over it, all in one process with one loaded
    model. Masked runs share one context, unmasked runs another one."""

    name: str
    model: str
    settings: Settings = field(default_factory=Settings)
    runs: tuple[Run, ...] = (Run(),)
    draft: str = ""  # a draft model that reads the target's hidden states (EAGLE-3, DFlash), or none
    draft_reads: tuple[int, ...] = ()  # the target's layers whose inputs it reads
    lora: str = ""  # an adapter to apply, or none
    lora_scale: float = 1.0
    overrides: dict[str, int | float | bool] = field(default_factory=dict)  # replaces the file's metadata
    script: str = "full"  # a key of script.SCRIPTS
    n_gpu_layers: int = -1  # number of layers on the device, where there is one
    use_mmap: bool = True
    tensor_split: tuple[float, ...] = ()  # each device's part of the layers; empty: as their free memory
    slot_layers: tuple[tuple[int, ...], ...] = ()  # layers whose experts a device has; empty: as loaded


@dataclass(frozen=True)
class Job:
    """Cases for one worker process.

    `simulated_device` has arguments of `_core.set_simulated_device`, `pinning` of `_core.set_pinning`. With
    `together`, spac's worker runs all cases at the same time, each in a thread. Then all runs must be masked,
    and no uploads may fail, because that setting holds for the process.

    `device` is the one that spac's device wraps, or several with commas between. The reference runs on the
    CPU if that is the simulated device, else on all devices that it finds. `further_devices` has the settings
    of more simulated devices, which share the layers with the first one; uploads fail on the last one alone.
    """

    cases: tuple[Case, ...]
    simulated_device: dict[str, Any] = field(default_factory=dict)
    further_devices: tuple[dict[str, Any], ...] = ()
    pinning: dict[str, int] = field(default_factory=dict)
    together: bool = False
    device: str = SIMULATED_DEVICE

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(path: Path) -> Job:
        data: dict[str, Any] = json.loads(path.read_text())
        for case in data["cases"]:
            case["settings"] = Settings(**case["settings"])
            case["runs"] = tuple(Run(**run) for run in case["runs"])
        return Job(**data | {"cases": tuple(Case(**case) for case in data["cases"])})


@dataclass(frozen=True)
class Difference:
    """The first step at which two runs of a case differ, and by how much."""

    case: str
    run: str
    step: str
    row: int
    largest: float  # |a - b| over the step's logits; inf where shapes differ or a number is not finite
    steps_equal: int

    def __str__(self) -> str:
        return (
            f"{self.case}, {self.run}: {self.steps_equal} steps equal, then {self.step} differs "
            f"in row {self.row} by up to {self.largest:.3g}"
        )
