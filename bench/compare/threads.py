"""Choose how many threads each side computes with: one process per side tries several numbers shortly."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.compare.cells import LEAST_S, MOST_S, OUT_OF_TIME, Engine, key_of, layers_on_cpu, run_cell
from bench.compare.job import Job
from bench.compare.peer import uses
from spac.config import Slots

if TYPE_CHECKING:
    from bench.compare.comparison import Comparison

TOKENS = 32


@dataclass
class Threads:
    """The candidate numbers, and the number chosen for each side (`Engine.side`)."""

    candidates: list[int]
    chosen: dict[str, int] = field(default_factory=dict)
    speeds: dict[str, dict[str, float]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, candidates: list[int]) -> Threads:
        """Return what an earlier call chose from the same numbers."""
        if path.is_file():
            known = json.loads(path.read_text())
            if known["candidates"] == candidates:
                return cls(**known)
        return cls(candidates)

    def write(self, path: Path) -> None:
        """Write the choice for later calls."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")

    def choose(self, side: str, speeds: dict[str, float]) -> None:
        """Choose the fastest number; of equal ones the smallest. Without speeds it is the first candidate."""
        self.speeds[side] = speeds
        order = sorted(speeds, key=lambda n: (-speeds[n], int(n)))
        self.chosen[side] = int(order[0]) if order else self.candidates[0]

    def of(self, side: str) -> int:
        """Return the number for engines of that side."""
        return self.chosen.get(side, self.candidates[0])

    @property
    def text(self) -> str:
        """Return one number, or each side's number with its reason."""
        if len(self.candidates) == 1:
            return str(self.candidates[0])
        parts = []
        for side, chosen in self.chosen.items():
            found = ", ".join(f"{n}: {speed:.1f}" for n, speed in self.speeds[side].items())
            parts.append(f"{side} {chosen} ({found + ' tokens/s' if found else 'the sweep failed'})")
        return "; ".join(parts) or f"{self.candidates[0]}, not tuned"


def job_of(comparison: Comparison, engine: Engine) -> Job:
    """Return the sweep of an engine's side: the shortest context, the first budget, one prompt, no draft.

    A peer whose command takes a draft has one. N of --n-cpu-moe is computed from the slots, because nobody
    knows yet how much VRAM spac takes.
    """
    args, context = comparison.args, min(comparison.args.contexts)
    share = Slots.parse(args.budgets[0]).share or 0.0
    on_cpu = layers_on_cpu(comparison.sizes, share * sum(comparison.sizes))
    prompts = comparison.prompts[context][:1]
    job = Job(
        kind="threads", target=str(args.target), prompts=prompts, n_predict=TOKENS,
        ctx=context + TOKENS + 64, threads=args.threads[0], device=comparison.device(engine.kind),
        n_cpu_moe=None if engine.kind == "spac" else on_cpu, slots=args.budgets[0],
        scheduler=args.schedulers[0], thread_counts=list(args.threads),
    )  # fmt: skip
    return replace(job, **comparison.of_peer(engine, prompts))


def tune(comparison: Comparison) -> None:
    """Choose the threads of each side that has rows, once. With one number there is nothing to measure."""
    known, path = comparison.threads, comparison.cells / "threads.json"
    sides: dict[str, Engine] = {}
    for cell in comparison.grid:
        if not cell.engine.command or uses(cell.engine.command, "threads"):
            sides.setdefault(cell.engine.side, cell.engine)
    for side, engine in sides.items() if len(known.candidates) > 1 else ():
        key = key_of(f"threads-{side}")
        if side in known.chosen and comparison.has(key, engine.command):
            continue
        left = comparison.deadline - time.monotonic()
        if left < LEAST_S:
            comparison.not_run.append(f"{key}: {OUT_OF_TIME}")
            continue
        print(f"{key} …", file=sys.stderr, flush=True)
        reference = None if side == "spac" else comparison.reference
        result = run_cell(job_of(comparison, engine), comparison.cells, key, reference, min(left, MOST_S))
        if result.error:
            # The number is kept too, because the following cells must not be mixed with others.
            comparison.not_run.append(f"{key}: {result.error}")
        known.choose(side, result.speeds)
        known.write(path)
