"""Run generations on the pretend card, each in a process of its own, and report their calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tools.cuda_host.build import ROOT


class JobError(Exception):
    """A worker ended without a result. The message is its last lines."""


def settings(**card: Any) -> dict[str, str]:
    """Return the environment of a card. Its settings are PRETEND_CUDA_…, without the prefix."""
    return {f"PRETEND_CUDA_{name}": str(value) for name, value in card.items()}


def python(
    package: Path, *arguments: object, timeout_s: float = 120, **environment: object
) -> subprocess.CompletedProcess[str]:
    """Run Python with the package that `build.make_package` made."""
    paths = {"PYTHONPATH": os.pathsep.join((str(package), str(ROOT)))}
    return subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | paths | {name: str(value) for name, value in environment.items()},
        cwd=package,
        capture_output=True,
        text=True,
        timeout=timeout_s,
    )


@dataclass(frozen=True)
class Job:
    """Settings of a generation. The options are EngineConfig's."""

    target: str = ""  # default: the demo pair
    vocabulary: int = 4096
    draft_length: int = 0
    changing_length: bool = False  # another length, from 1 to draft_length, at every step
    changing_slots: bool = False  # another number of slots at every fourth step
    sentences: int = 1  # sentences of the prompt, about 14 tokens each
    tokens: int = 40
    left: int | None = None  # bytes of the card that are left for a second text; None: there is one text
    masked: bool = True  # the device reads ids masks, as after bench/gpu_suite
    ahead: bool = True  # launches ahead of the host, where the device can
    rehearses: bool = True  # the largest graphs run once before slots are attached
    options: Mapping[str, Any] = field(default_factory=lambda: {"slots": "25%"})
    card: Mapping[str, Any] = field(default_factory=dict)  # as in `settings`

    def environment(self) -> dict[str, str]:
        parts = {"masks": self.masked, "ahead": self.ahead}
        form = ",".join(part if on else f"no-{part}" for part, on in parts.items())
        # No kernel computes, whatever the environment of test_executed.py says.
        card = {"VOCABULARY": self.vocabulary, "EXECUTE": "", **self.card}
        return {"SPAC_FORM": form, **settings(**card)}


@dataclass(frozen=True)
class Step:
    """The calls of one step, and the growth of Experts.stats."""

    calls: dict[str, int]  # by kind
    streams: dict[str, dict[str, int]]  # calls by kind, by stream
    stats: dict[str, int]
    kernels: dict[str, int]  # launched, or captured into a graph, by (mangled) name

    def __getitem__(self, kind: str) -> int:
        return self.calls.get(kind, 0)


@dataclass(frozen=True)
class Result:
    text: str
    n_layers: int
    host_memory: str
    steps: list[Step]  # from the second on
    misuse: dict[str, int]
    notes: list[str]
    hits: dict[str, int]  # activations that each device computed


def run(job: Job, package: Path, timeout_s: float = 120) -> Result:
    """Run `job` with the package that `build.make_package` made. Raise JobError on failure."""
    job_text = json.dumps(asdict(job))
    done = python(package, "-m", "tools.cuda_host.worker", job_text, timeout_s=timeout_s, **job.environment())
    if done.returncode != 0:
        raise JobError(f"{job}: exit {done.returncode}\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    return Result(**found | {"steps": [Step(**step) for step in found["steps"]]})
