"""Define the cells of the comparison, their order, and the process that runs one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench import processes
from bench.compare import peer
from bench.compare.job import Job, Result
from bench.compare.rivals import Engine
from bench.compare.vram import VramMeter
from spac.model.gguf.header import read_header
from spac.model.gguf.info import EXPERTS


@dataclass(frozen=True)
class Cell:
    """One engine on one budget ("17%") and context (tokens of prompt)."""

    engine: Engine
    budget: str
    context: int

    @property
    def key(self) -> str:
        budget = self.budget if self.engine.by_budget else "any"
        return key_of(f"{self.engine.name}-{budget}-{self.context}")


def key_of(name: str) -> str:
    """Return the name as a part of file names."""
    return "".join(c if c.isalnum() or c in "-%." else "_" for c in name)


def grid(rows: Sequence[Engine], budgets: Sequence[str], contexts: Sequence[int]) -> Iterator[Cell]:
    """Yield every cell once, the deciding ones first. All engines run on the first budget and context. Then
    the first engines run on the others, then the rest."""
    places = [(budget, context) for context in contexts for budget in budgets]
    places.sort(key=lambda place: (budgets.index(place[0]) > 0) + (contexts.index(place[1]) > 0))
    # The deciding rows are spac with a draft and with the governor, all peers, and four rows of llama.cpp:
    # two with a draft and two without, because either may be its best.
    kinds = [row.kind for row in rows]
    deciding = 2 + 4 * ("llama.cpp" in kinds) + kinds.count("peer")
    seen: set[str] = set()
    for some, where in ((rows, places[:1]), (rows[:deciding], places[1:]), (rows[deciding:], places[1:])):
        for cell in (Cell(engine, budget, context) for budget, context in where for engine in some):
            if cell.key not in seen:
                seen.add(cell.key)
                yield cell


def layer_bytes(path: Path) -> list[int]:
    """Return the bytes of every layer's experts, 0 where a layer has none."""
    sizes: dict[int, int] = {}
    for tensor in read_header(path).tensors:
        if tensor.name.startswith("blk."):
            layer = int(tensor.name.split(".")[1])
            sizes[layer] = sizes.get(layer, 0) + (tensor.n_bytes if EXPERTS.search(tensor.name) else 0)
    return [sizes.get(i, 0) for i in range(max(sizes) + 1)]


def layers_on_cpu(sizes: list[int], room: float) -> int:
    """Return the N of --n-cpu-moe: the first N layers' experts are on the CPU, the others' fit into `room`
    bytes."""
    used, n = 0, len(sizes)
    while n > 0 and used + sizes[n - 1] <= room:
        n -= 1
        used += sizes[n]
    return n


def run_cell(job: Job, work: Path, key: str, reference: Path | None, seconds: float) -> Result:
    """Run a job in a process of its own, and keep its result in the work folder, so that later calls know it.

    reference: the folder of the unpatched library, for jobs of llama.cpp; None: spac's own library. A peer
    has its own program.
    """
    job_path, result_path, log = (work / f"{key}.{end}" for end in ("job.json", "json", "log"))
    job.write(job_path)
    result_path.unlink(missing_ok=True)
    if job.command:
        result = peer.run(job, log, seconds)
    else:
        side = "ours" if reference is None else "theirs"
        words = [sys.executable, "-m", "bench.compare.worker", job_path, result_path, side]
        with VramMeter(job.device) as meter:
            ended = processes.run(words, log, seconds, processes.environment(reference))
        if result_path.is_file():
            result = replace(Result.read(result_path), peak_vram=meter.used, threads=job.threads)
        else:
            result = Result(error=ended.fault)
    result.write(result_path)
    return result
